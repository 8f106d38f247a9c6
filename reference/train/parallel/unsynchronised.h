// SPDX-License-Identifier: MIT
//
// FSDP's gradients under no_sync (2304.11277, section 3.3.4; PyTorch's name): micro-batches are added up whole on every
// rank, and each unit is reduce-scattered once a step, in the last of them. It saves the other micro-batches'
// reductions and costs the memory that sharding gradients had saved: 4 P bytes in fp32, of which the shard is a part,
// and the scratch of whole_gradients.h. Sums run over micro-batches first and then over ranks, as in plain data
// parallelism.

#pragma once

#include <memory>
#include <vector>

#include "reference/train/parallel/flat.h"
#include "reference/train/parallel/unit_gradients.h"

namespace train {

// `groups` in the order of the model.
std::unique_ptr<UnitGradients> make_unsynchronised(const Setup& setup, const std::vector<Flat>& groups,
                                                   const Comm& shard_group, const Stream& communication);

}  // namespace train
