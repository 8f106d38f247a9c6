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
//
// Backward, two collectives have work beside them, on a stream of their own (as Megatron-LM's linear layers do it): the
// rows that are gathered again come while the gradients of inputs are computed, and the input's gradient is summed over
// ranks while those of the region's weights are. A split backward pass has no weights to put there.

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

// The same again in the backward pass, beside what is enqueued until join_columns.
inline View enter_columns_again(const Context& context, View x, Arena& arena) {
  if (!context.groups.sequence || context.tp().size() == 1) return x;
  View whole;
  context.groups.exchange->begin(context.stream,
                                 [&](const Stream& beside) { whole = enter_region(context.groups, beside, x, arena); });
  return whole;
}
inline void join_columns(const Context& context) {
  if (context.groups.sequence && context.tp().size() > 1) context.groups.exchange->join(context.stream);
}

// The sum over tp of the ranks' partial gradients, beside what work() enqueues. May work in place.
template <class Work>
View enter_columns_backward(const Context& context, View partial, Arena& arena, const Work& work) {
  if (context.tp().size() == 1) {
    work();
    return partial;
  }
  View sum;
  context.groups.exchange->begin(context.stream, [&](const Stream& beside) {
    sum = enter_region_backward(context.groups, beside, partial, arena);
  });
  work();
  context.groups.exchange->join(context.stream);
  return sum;
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
