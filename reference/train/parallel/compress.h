// SPDX-License-Identifier: MIT
//
// What gradients are turned into for the way between data-parallel ranks.

#pragma once

#include <memory>

#include "reference/train/core/comm.h"
#include "reference/train/core/device.h"

namespace train {

class Compressor {
 public:
  virtual ~Compressor() = default;
  // gradient = (about) its sum over the ranks, enqueued on `stream`. Buckets are told apart by number, since what was
  // left out of one is kept for its next time.
  virtual void all_reduce(int bucket, View gradient, const Comm& group, const Stream& stream) = 0;
};

// Rounded to bf16 on the way and summed in bf16: half the bytes of fp32.
std::unique_ptr<Compressor> make_bf16(Memory& memory);
// Only the largest `fraction` of a bucket's elements, as (index, value) pairs of every rank; what was left out is added
// to the next step's gradient (error feedback: Stich et al. 2018, 1809.07599, algorithm 1; Lin et al. 2018,
// 1712.01887).
std::unique_ptr<Compressor> make_topk(Memory& memory, double fraction);

}  // namespace train
