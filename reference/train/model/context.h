// SPDX-License-Identifier: MIT
//
// What every module of one rank's model knows beside its own parameters.

#pragma once

#include <vector>

#include "reference/train/core/device.h"
#include "reference/train/core/module.h"
#include "reference/train/kernels/kernels.h"
#include "reference/train/model/config.h"

namespace train {

class Watcher;  // model/watch.h

struct Context {
  const Config config;
  const Groups& groups;
  const Stream& stream;        // all computation of this rank is enqueued here
  View loss;                   // one double: where the micro-batch that runs now adds its sum of losses
  double loss_scale = 1;       // factor of every gradient (for bf16): where the backward pass begins
  Watcher* watcher = nullptr;  // sees activations; mostly nobody
  int micro_batch = 0;         // that runs forward now

  cudaStream_t cuda() const { return stream.get(); }
  const Comm& tp() const { return groups.tp; }
  RandomStream random(RandomUse use, int64_t layer) const { return {config.seed, use, static_cast<uint32_t>(layer)}; }
};

// What a module keeps of each micro-batch in flight.
template <class Saved>
class Slots {
 public:
  Saved& operator[](int slot) {
    if (static_cast<size_t>(slot) >= saved_.size()) saved_.resize(static_cast<size_t>(slot) + 1);
    return saved_[static_cast<size_t>(slot)];
  }

 private:
  std::vector<Saved> saved_;
};

}  // namespace train
