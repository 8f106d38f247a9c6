// SPDX-License-Identifier: MIT
//
// Context parallelism: every sequence is split over the ranks of a group, so that a sequence may be too long for one
// rank. All but attention works on single tokens and never notices; attention is done in one of three ways:
//
//   ring        (Liu et al. 2023, 2310.01889) blocks of keys and values go round the ring while each rank attends to
//   the
//               block it has, and partial results are merged by their log-sum-exp. Backward, the blocks go round again,
//               followed by their gradients, which take one step more to be home. No rank ever holds more than two
//               blocks.
//   all-gather  (Grattafiori et al. 2024, 2407.21783, section 3.3.2) all keys and values on every rank, again for the
//               backward pass, whose gradients are reduce-scattered.
//   Ulysses     (Jacobs et al. 2023, 2309.14509, section 3) all-to-all turns a part of the sequence with all heads into
//               the whole sequence with a part of the heads, and back after attention.
//
// Balance: a causal rank that held the begin of a sequence would wait for the one that holds its end. So a sequence is
// cut into 2c chunks and rank r holds chunks r and 2c - 1 - r ("zigzag"): an early one, which sees little, and a late
// one. Positions, masks and labels go by the global index (batch.order), never by the place on the rank; labels are
// shifted before the sequence is cut.
//
// What it saves and what not: activations of all layers, 1/c of them a rank. Sequence parallelism (sequence.h) saves
// them outside of tensor-parallel regions only, and its attention still sees the whole sequence on every rank.

#pragma once

#include <vector>

#include "reference/train/core/device.h"
#include "reference/train/core/module.h"
#include "reference/train/kernels/kernels.h"
#include "reference/train/parallel/exchange.h"

namespace train {

// The places in the whole sequence that a rank holds, in the order in which it holds them; 2 * size divides length.
std::vector<int64_t> context_places(int64_t length, int rank, int size);

// The attention of one layer over a sequence split over groups.cp.
struct ContextAttention {
  const Groups& groups;
  const Stream& stream;
  Exchange& exchange;
  const Batch& batch;
  AttentionShape shape;  // of this rank: queries = keys = batch.length
  RandomStream random;
  double dropout;
};

// q, k, v, out and their gradients: strides as `shape` says; lse wide [rows, heads]. What is returned must be given to
// the backward pass again and lies in `arena` (Ulysses keeps what it gathered; the others nothing).
View context_forward(const ContextAttention& call, View out, View lse, View q, View k, View v, Arena& arena);
void context_backward(const ContextAttention& call, View q_grad, View k_grad, View v_grad, View out_grad, View out,
                      View q, View k, View v, View lse, View saved);

}  // namespace train
