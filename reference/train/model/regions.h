// SPDX-License-Identifier: MIT
//
// Where the modes that split a layer act: what the modules call at the borders of tensor-parallel regions, and for
// attention over a sequence that may be split. This file is the seam for those modes: replace the bodies below by calls
// into parallel/, or declare the same names there. The modules themselves know local sizes only.
//
// Inside a region (columns, then rows of a matrix) a rank has all rows of the micro-batch and a part of the columns.
// Between regions it has all columns of `outer_rows`: all rows, or a tp-th of them under sequence parallelism.
//
//   who             calls                       forward                              backward
//   attention, MLP  enter_columns               [outer, C] -> [rows, C]              partial [rows, C] -> [outer, C]
//                   leave_rows                  partial [rows, C] -> [outer, C]      [outer, C] -> [rows, C]
//   embedding       leave_rows                  the same: each rank looks up its part of the vocabulary
//   head            enter_columns               the same, then three all-reduces of loss statistics [rows]
//   attention       attend                      between the two, over the heads of this rank

#pragma once

#include "reference/train/model/context.h"

namespace train {

// The rows of this rank between regions, as a part of the batch's.
struct OuterRows {
  int64_t begin = 0, count = 0;
};

inline OuterRows outer_rows(const Context& context, const Batch& batch) {
  if (!context.groups.sequence) return {0, batch.rows()};
  const int64_t count = batch.rows() / context.tp().size();
  return {context.tp().rank() * count, count};
}

inline View enter_columns(const Context& context, View x, Arena& arena) {
  if (!context.groups.sequence || context.tp().size() == 1) return x;
  const View whole = arena.take(x.dtype, x.size * context.tp().size());
  context.tp().all_gather(x, whole, context.stream);
  return whole;
}

// The sum over tp of the ranks' partial gradients. May work in place.
inline View enter_columns_backward(const Context& context, View partial, Arena& arena) {
  if (!context.groups.sequence || context.tp().size() == 1) {
    context.tp().all_reduce(partial, ncclSum, context.stream);
    return partial;
  }
  const View grad = arena.take(partial.dtype, partial.size / context.tp().size());
  context.tp().reduce_scatter(partial, grad, ncclSum, context.stream);
  return grad;
}

// The two are each other's backward pass: f and g of 1909.08053 (section 3), g and g-bar of 2205.05198 (section 4.2.2).
inline View leave_rows(const Context& context, View partial, Arena& arena) {
  return enter_columns_backward(context, partial, arena);
}
inline View leave_rows_backward(const Context& context, View grad, Arena& arena) {
  return enter_columns(context, grad, arena);
}

inline void sum_over_vocabulary(const Context& context, View rows) {
  context.tp().all_reduce(rows, ncclSum, context.stream);
}
inline void max_over_vocabulary(const Context& context, View rows) {
  context.tp().all_reduce(rows, ncclMax, context.stream);
}

// Attention of this rank's heads. qkv [rows, (Q + 2 K) d]: queries, keys and values of a token side by side, already
// turned where positions are rotary. mixed [rows, Q d] is the result, lse [rows, Q] (wide) what the backward pass needs
// of the softmax.
struct Attention {
  View qkv, mixed, lse;
};
void attend(const Context& context, const Batch& batch, const Attention& attention, int64_t layer, Arena& arena);
// qkv_grad [rows, (Q + 2 K) d] from mixed_grad [rows, Q d].
void attend_backward(const Context& context, const Batch& batch, View qkv_grad, View mixed_grad,
                     const Attention& attention, int64_t layer, Arena& arena);

}  // namespace train
