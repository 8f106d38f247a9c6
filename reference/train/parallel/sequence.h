// SPDX-License-Identifier: MIT
//
// Sequence parallelism as Megatron means it (Korthikanti et al. 2022, 2205.05198, section 4.2.2): an addition to tensor
// parallelism. Outside of tensor-parallel regions every rank would hold and compute the same rows, layer norms, dropout
// and residuals; here each rank of the tensor-parallel group holds 1/tp of the rows of a micro-batch. It saves
// activation memory and moves the same bytes: an all-reduce is a reduce-scatter and an all-gather, and these two are
// put where f and g were.
//
//   f: all-gather forward, reduce-scatter backward. The gathered rows are not saved: the backward pass gathers again.
//   g: reduce-scatter forward, all-gather backward.
//
// Attention sees the whole sequence all the same, for it runs inside a region. (Splitting the sequence there too is
// context parallelism, context.h.) Parameters used outside, layer norms and the biases after g, see only some rows, so
// that their gradients are parts of a sum over the group: partial_over_tp.
//
// Rank r holds rows [r, r + 1) * rows / tp of the micro-batch: of all its sequences one after another, so that tp must
// divide the rows, not the length.

#pragma once

#include "reference/train/core/device.h"
#include "reference/train/core/module.h"

namespace train {

View gather_rows(const Comm& tp, const Stream& stream, View part, Arena& arena);
View scatter_rows(const Comm& tp, const Stream& stream, View sum, Arena& arena);  // and summed

// The rows of a micro-batch that this rank holds outside of tensor-parallel regions.
struct OuterRows {
  int64_t begin = 0, count = 0;
};
OuterRows outside_rows(const Groups& groups, int64_t rows);

}  // namespace train
