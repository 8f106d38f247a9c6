// SPDX-License-Identifier: MIT
//
// Data parallelism: every rank has the whole model and a part of the batch; gradients are summed over the ranks
// (Li et al. 2020, 2006.15704).

#pragma once

#include <memory>
#include <vector>

#include "reference/train/core/strategy.h"
#include "reference/train/parallel/setup.h"

namespace train {

class Compressor;

// Gradients travel in buckets of `bucket_bytes`; `compressor` may be null.
std::unique_ptr<Strategy> make_data_parallel(const Setup& setup, double bucket_bytes,
                                             std::unique_ptr<Compressor> compressor);

// Parameters that are never trained lie whole on every rank under data parallelism and ZeRO 1 and 2.
void make_frozen(const Setup& setup);

}  // namespace train
