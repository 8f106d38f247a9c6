// SPDX-License-Identifier: MIT
//
// What the ways of context parallelism share: keys and values of one rank as a block that can be sent, and attention to
// such a block.

#pragma once

#include "reference/train/parallel/context.h"

namespace train {

int64_t block_elements(const AttentionShape& shape);  // keys and values of one rank: [2, rows, kv heads * head width]
View keys_of(View block);
View values_of(View block);
// Between the strided columns of a layer's activations and a block.
void pack(const ContextAttention& call, View block, View k, View v);
void unpack(const ContextAttention& call, View k, View v, View block);
// rows x columns elements between two places with strides of their own.
void copy_columns(const Stream& stream, View to, int64_t to_stride, View from, int64_t from_stride, int64_t rows,
                  int64_t columns);

// Attention of the own queries to the block of rank `owner`, merged with what out and lse hold.
void attend_block(const ContextAttention& call, View out, View lse, View q, View block, int owner, bool merge);
// Gradients of the same, wide: q_grad (added to if `add`) and the block's.
void attend_block_backward(const ContextAttention& call, Into q_grad, View block_grad, View out_grad, View q,
                           View block, View lse, View delta, int owner);

void ring_forward(const ContextAttention& call, View out, View lse, View q, View k, View v);
void ring_backward(const ContextAttention& call, View q_grad, View k_grad, View v_grad, View out_grad, View q, View k,
                   View v, View lse, View delta);
void gather_forward(const ContextAttention& call, View out, View lse, View q, View k, View v);
void gather_backward(const ContextAttention& call, View q_grad, View k_grad, View v_grad, View out_grad, View q, View k,
                     View v, View lse, View delta);
View ulysses_forward(const ContextAttention& call, View out, View lse, View q, View k, View v, Arena& arena);
void ulysses_backward(const ContextAttention& call, View q_grad, View k_grad, View v_grad, View out_grad, View lse,
                      View saved);

}  // namespace train
