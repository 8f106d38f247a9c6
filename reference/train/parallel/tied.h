// SPDX-License-Identifier: MIT
//
// Tied embeddings in a pipeline (2104.04473, section 2.2; 1909.08053): the first stage uses the table to look tokens
// up, the last one as the head's matrix, and both hold it. Its gradient is the sum of both uses, one all-reduce a step
// between the two.
//
// When? Sharding strategies sum gradients over data-parallel ranks as soon as a module is done, and shards of the two
// stages do not match, so that the sum over stages must come first: an all-reduce after a reduce-scatter would mix
// parts of different elements. But the last stage is done with the head long before the first one is with the
// embedding. So this takes the table out of both modules' hands: it adds up the micro-batches itself, tells the
// strategy of an extra module, whose gradient is nothing until the last micro-batch, and gives it the whole sum as that
// one's, once all else is done.

#pragma once

#include <functional>
#include <memory>

#include "reference/train/core/strategy.h"
#include "reference/train/parallel/setup.h"

namespace train {

// `make` gets a setup whose modules are those of `setup` after one that has only `table`. `ends`: this rank and its
// counterpart on the other end of the pipeline.
std::unique_ptr<Strategy> tie_ends(const Setup& setup, Parameter& table, const Comm& ends,
                                   const std::function<std::unique_ptr<Strategy>(const Setup&)>& make);

}  // namespace train
