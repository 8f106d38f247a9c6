// SPDX-License-Identifier: MIT
//
// ZeRO 1 and 2 (Rajbhandari et al. 2020, 1910.02054). Stage 3 shards parameters too, as FSDP does: fsdp.h.

#pragma once

#include <memory>

#include "reference/train/core/strategy.h"
#include "reference/train/parallel/setup.h"

namespace train {

std::unique_ptr<Strategy> make_zero1(const Setup& setup, double bucket_bytes);
// With `own_slots` gradients of several micro-batches may be under way at once (a pipeline).
std::unique_ptr<Strategy> make_zero2(const Setup& setup, double bucket_bytes, bool own_slots);

}  // namespace train
