// SPDX-License-Identifier: MIT
//
// Tensor parallelism (Shoeybi et al. 2019, 1909.08053, section 3): matrices are split over the ranks of a group, and
// the activations between them are whole on every rank.
//
//   a pair of linear layers     Y = g(gelu(f(X) A) B): A is cut by its outputs (columns of the paper's X A), B by its
//                               inputs (rows), so that what lies between, gelu or attention's heads, needs no exchange.
//                               f: nothing forward, all-reduce backward. g: all-reduce forward, nothing backward.
//   the bias of B               is added after g, once, and not once a rank.
//   embedding and head          cut by the vocabulary; the embedding ends in g, the head's matrix begins with f.
//   cross entropy               three all-reduces of one number a token instead of gathering [rows, vocabulary].
//
// Under sequence parallelism (sequence.h) f and g move rows instead; the functions here are what modules call in both
// cases. Collectives run on the stream they are given: the compute stream where the result is needed at once, another
// where there is work to do beside them (model/regions.h).

#pragma once

#include <cstdint>

#include "reference/train/core/device.h"
#include "reference/train/core/module.h"

namespace train {

// --- f and g ---------------------------------------------------------------------------------------------------------
// x [outside rows, width] -> [all rows, width]; without sequence parallelism it is x itself. The same call gathers x
// again in the backward pass, where only the rank's own rows were saved.
View enter_region(const Groups& groups, const Stream& stream, View x, Arena& arena);
// x_grad, this rank's part of the sum, is summed over the ranks: in place, or into this rank's rows.
View enter_region_backward(const Groups& groups, const Stream& stream, View x_grad, Arena& arena);
// y, this rank's part of the sum, likewise.
View leave_region(const Groups& groups, const Stream& stream, View y, Arena& arena);
View leave_region_backward(const Groups& groups, const Stream& stream, View y_grad, Arena& arena);

// --- vocabulary-parallel cross entropy -------------------------------------------------------------------------------
// This rank's logits [rows, columns] of classes first...; statistics wide [rows], the same on all ranks afterwards, as
// is the loss (added to).
struct LossStatistics {
  View row_max, target_logit, sum_exp;
};
struct VocabularyPart {
  int64_t first, columns;  // of this rank, padding included
  int64_t classes;         // of the whole vocabulary, padding left out
};
void vocabulary_loss(const Comm& tp, const Stream& stream, View loss, const LossStatistics& statistics, View logits,
                     const int32_t* targets, int64_t rows, const VocabularyPart& part);

}  // namespace train
