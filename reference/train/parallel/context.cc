// SPDX-License-Identifier: MIT

#include "reference/train/parallel/context.h"

#include "reference/train/parallel/context_blocks.h"

namespace train {

std::vector<int64_t> context_places(int64_t length, int rank, int size) {
  const int64_t chunk = length / (2 * size);
  std::vector<int64_t> places;
  for (const int64_t number : {static_cast<int64_t>(rank), static_cast<int64_t>(2 * size - 1 - rank)})
    for (int64_t i = 0; i < chunk; ++i) places.push_back(number * chunk + i);
  return places;
}

int64_t block_elements(const AttentionShape& shape) {
  return 2 * shape.sequences * shape.keys * shape.kv_heads * shape.head_width;
}
View keys_of(View block) { return block.part(0, block.size / 2); }
View values_of(View block) { return block.part(block.size / 2, block.size / 2); }

void copy_columns(const Stream& stream, View to, int64_t to_stride, View from, int64_t from_stride, int64_t rows,
                  int64_t columns) {
  const size_t element = size_of(from.dtype);
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * element; };
  check(cudaMemcpy2DAsync(to.data, bytes(to_stride), from.data, bytes(from_stride), bytes(columns),
                          static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, stream.get()),
        "cudaMemcpy2DAsync");
}

void pack(const ContextAttention& call, View block, View k, View v) {
  const AttentionShape& s = call.shape;
  const int64_t rows = s.sequences * s.keys, columns = s.kv_heads * s.head_width;
  copy_columns(call.stream, keys_of(block), columns, k, s.kv_stride, rows, columns);
  copy_columns(call.stream, values_of(block), columns, v, s.kv_stride, rows, columns);
}

void unpack(const ContextAttention& call, View k, View v, View block) {
  const AttentionShape& s = call.shape;
  const int64_t rows = s.sequences * s.keys, columns = s.kv_heads * s.head_width;
  copy_columns(call.stream, k, s.kv_stride, keys_of(block), columns, rows, columns);
  copy_columns(call.stream, v, s.kv_stride, values_of(block), columns, rows, columns);
}

namespace {

// Which part of its queries sees which part of an owner's keys. Of two ranks' zigzag chunks r < 2c - 1 - r the later
// rank's early chunk comes after the earlier rank's and its late chunk before, so that there are three cases, and in
// each but the first half of the pairs is skipped: every rank has the same work.
struct Part {
  int64_t first_query, queries, first_key, keys;
};
Part visible_part(const AttentionShape& s, int rank, int owner) {
  if (owner == rank) return {0, s.queries, 0, s.keys};     // the causal mask within
  if (owner < rank) return {0, s.queries, 0, s.keys / 2};  // its late chunk comes after all of mine
  return {s.queries / 2, s.queries / 2, 0, s.keys};        // only my late chunk comes after its two
}

View from(View view, int64_t elements) { return view.part(elements, view.size - elements); }

// One sequence's part of all operands, so that a part of its rows is a contiguous piece.
struct Piece {
  AttentionShape shape;
  AttentionRows rows;
  int64_t query, key;  // first rows
};
Piece piece_of(const ContextAttention& call, const Part& part, int owner, int64_t sequence) {
  const AttentionShape& s = call.shape;
  const Batch& batch = call.batch;
  Piece piece{s, {}, sequence * s.queries + part.first_query, sequence * s.keys + part.first_key};
  piece.shape.sequences = 1;
  piece.shape.queries = part.queries;
  piece.shape.keys = part.keys;
  piece.shape.kv_stride = s.kv_heads * s.head_width;  // in a block
  const int64_t key = owner * batch.rows() + piece.key;
  piece.rows = {batch.order + piece.query, batch.documents + piece.query, batch.all_order + key,
                batch.all_documents + key, batch.samples + piece.query};
  return piece;
}

}  // namespace

void attend_block(const ContextAttention& call, View out, View lse, View q, View block, int owner, bool merge) {
  const AttentionShape& s = call.shape;
  const Part part = visible_part(s, call.groups.cp.rank(), owner);
  for (int64_t sequence = 0; sequence < s.sequences; ++sequence) {
    const Piece piece = piece_of(call, part, owner, sequence);
    const int64_t key = piece.key * piece.shape.kv_stride;
    attention_forward(call.stream.get(), from(out, piece.query * s.out_stride), from(lse, piece.query * s.heads),
                      from(q, piece.query * s.q_stride), from(keys_of(block), key), from(values_of(block), key),
                      piece.shape, piece.rows, call.random, call.dropout, merge);
  }
}

void attend_block_backward(const ContextAttention& call, Into q_grad, View block_grad, View out_grad, View q,
                           View block, View lse, View delta, int owner) {
  const AttentionShape& s = call.shape;
  const Part part = visible_part(s, call.groups.cp.rank(), owner);
  if (part.keys < s.keys) fill(call.stream.get(), block_grad, 0);  // of keys that nobody here sees
  for (int64_t sequence = 0; sequence < s.sequences; ++sequence) {
    const Piece piece = piece_of(call, part, owner, sequence);
    const int64_t key = piece.key * piece.shape.kv_stride;
    attention_backward(call.stream.get(), {from(q_grad.view, piece.query * s.q_stride), q_grad.add},
                       {from(keys_of(block_grad), key), false}, {from(values_of(block_grad), key), false},
                       from(out_grad, piece.query * s.out_stride), from(q, piece.query * s.q_stride),
                       from(keys_of(block), key), from(values_of(block), key), from(lse, piece.query * s.heads),
                       from(delta, piece.query * s.heads), piece.shape, piece.rows, call.random, call.dropout);
  }
}

// What is merged block by block is wide: in bf16 every block would round it again.
View context_forward(const ContextAttention& call, View out, View lse, View q, View k, View v, Arena& arena) {
  Arena& workspace = call.exchange.empty_workspace();
  if (call.groups.context == ContextWay::ulysses) return ulysses_forward(call, out, lse, q, k, v, arena);
  const bool narrow = out.dtype != wide(out.dtype);
  const View merged = narrow ? workspace.take(wide(out.dtype), out.size) : out;
  const auto forward = call.groups.context == ContextWay::ring ? ring_forward : gather_forward;
  forward(call, merged, lse, q, k, v);
  if (narrow) convert(call.stream.get(), out, merged);
  return {};
}

namespace {

// The gradient of bf16 queries in a wide sum of its own, rounded when it is whole; the queries are put beside it, since
// they have the same strides.
template <class Backward>
void sum_query_gradient(const ContextAttention& call, View q_grad, View q, const Backward& backward) {
  const AttentionShape& s = call.shape;
  const int64_t rows = s.sequences * s.queries, columns = s.heads * s.head_width;
  const View own = call.exchange.workspace().take(q.dtype, rows * columns);
  const View sum = call.exchange.workspace().take(wide(q.dtype), own.size);
  ContextAttention dense = call;
  dense.shape.q_stride = columns;
  copy_columns(call.stream, own, columns, q, s.q_stride, rows, columns);
  backward(dense, sum, own);
  convert(call.stream.get(), own, sum);
  copy_columns(call.stream, q_grad, s.q_stride, own, columns, rows, columns);
}

}  // namespace

void context_backward(const ContextAttention& call, View q_grad, View k_grad, View v_grad, View out_grad, View out,
                      View q, View k, View v, View lse, View saved) {
  Arena& workspace = call.exchange.empty_workspace();
  if (call.groups.context == ContextWay::ulysses)
    return ulysses_backward(call, q_grad, k_grad, v_grad, out_grad, lse, saved);
  const View delta = workspace.take(lse.dtype, lse.size);
  attention_delta(call.stream.get(), delta, out_grad, out, call.shape);
  const auto backward = [&](const ContextAttention& with, View sum, View queries) {
    const auto way = call.groups.context == ContextWay::ring ? ring_backward : gather_backward;
    way(with, sum, k_grad, v_grad, out_grad, queries, k, v, lse, delta);
  };
  if (q.dtype == wide(q.dtype)) return backward(call, q_grad, q);
  sum_query_gradient(call, q_grad, q, backward);
}

}  // namespace train
