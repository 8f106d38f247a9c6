// SPDX-License-Identifier: MIT
//
// Where the modes that split a layer act: what the modules call at the borders of tensor-parallel regions, and for
// attention over a sequence that may be split. The modes themselves are parallel/tensor.h, sequence.h and context.h;
// the modules know local sizes only.
//
// Inside a region (columns, then rows of a matrix) a rank has all rows of the micro-batch and a part of the columns.
// Between regions it has all columns of `outer_rows`: all rows, or a tp-th of them under sequence parallelism.
//
//   who             calls                       forward                              backward
//   attention, MLP  enter_columns               [outer, C] -> [rows, C]              partial [rows, C] -> [outer, C]
//                   leave_rows                  partial [rows, C] -> [outer, C]      [outer, C] -> [rows, C]
//   embedding       leave_rows                  the same: each rank looks up its part of the vocabulary
//   head            enter_columns               the same, then vocabulary_loss (parallel/tensor.h)
//   attention       attend                      between the two, over the heads of this rank

#pragma once

#include "reference/train/model/context.h"
#include "reference/train/parallel/exchange.h"
#include "reference/train/parallel/sequence.h"
#include "reference/train/parallel/tensor.h"

namespace train {

// The rows of this rank between regions, as a part of the batch's.
inline OuterRows outer_rows(const Context& context, const Batch& batch) {
  return outside_rows(context.groups, batch.rows());
}

// Where a forward pass gathers rows of which it keeps only its own: the backward pass gathers them again. In use until
// the next call of this.
inline Arena& brief(const Context& context, Arena& arena) {
  return context.groups.sequence ? context.groups.exchange->empty_workspace() : arena;
}

inline View enter_columns(const Context& context, View x, Arena& arena) {
  return enter_region(context.groups, context.stream, x, arena);
}
// The sum over tp of the ranks' partial gradients. May work in place.
inline View enter_columns_backward(const Context& context, View partial, Arena& arena) {
  return enter_region_backward(context.groups, context.stream, partial, arena);
}
inline View leave_rows(const Context& context, View partial, Arena& arena) {
  return leave_region(context.groups, context.stream, partial, arena);
}
inline View leave_rows_backward(const Context& context, View grad, Arena& arena) {
  return leave_region_backward(context.groups, context.stream, grad, arena);
}

// Attention of this rank's heads. qkv [rows, (Q + 2 K) d]: queries, keys and values of a token side by side, already
// turned where positions are rotary. mixed [rows, Q d] is the result, lse [rows, Q] (wide) what the backward pass needs
// of the softmax.
struct Attention {
  View qkv, mixed, lse;
  View gathered;  // written by attend where it keeps more for the backward pass
};
void attend(const Context& context, const Batch& batch, Attention& attention, int64_t layer, Arena& arena);
// qkv_grad [rows, (Q + 2 K) d] from mixed_grad [rows, Q d].
void attend_backward(const Context& context, const Batch& batch, View qkv_grad, View mixed_grad,
                     const Attention& attention, int64_t layer, Arena& arena);

}  // namespace train
