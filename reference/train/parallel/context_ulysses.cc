// SPDX-License-Identifier: MIT
//
// Ulysses (Jacobs et al. 2023, 2309.14509, section 3): four all-to-alls forward (queries, keys, values, result) and
// four backward (the gradients of the same). Between them each rank has whole sequences and 1/c of the heads, and
// attention is that of one rank. c must divide the key/value heads.

#include "reference/train/parallel/context_blocks.h"

namespace train {
namespace {

// [rows here, heads] on each rank <-> [rows of whole sequences, heads / c]. A whole sequence's rows stand in the order
// of the ranks that hold them.
struct Turn {
  const ContextAttention& call;
  int64_t columns;  // of all heads
  int64_t part() const { return columns / call.groups.cp.size(); }
  int64_t rows() const { return call.batch.rows(); }
  int64_t elements() const { return rows() * columns; }

  // Columns of rank j -> j's piece, and after the exchange the piece of rank i -> its rows of every sequence.
  void to_sequences(View whole, View here, int64_t stride) const {
    const auto [leaving, arriving] = buffers(here.dtype);
    for (int j = 0; j < call.groups.cp.size(); ++j)
      copy_columns(call.stream, piece(leaving, j), part(), here.part(j * part(), here.size - j * part()), stride,
                   rows(), part());
    call.groups.cp.all_to_all(leaving, arriving, call.stream);
    for (int i = 0; i < call.groups.cp.size(); ++i) place_rows(whole, piece(arriving, i), i, true);
  }
  void to_heads(View here, int64_t stride, View whole) const {
    const auto [leaving, arriving] = buffers(whole.dtype);
    for (int i = 0; i < call.groups.cp.size(); ++i) place_rows(whole, piece(leaving, i), i, false);
    call.groups.cp.all_to_all(leaving, arriving, call.stream);
    for (int j = 0; j < call.groups.cp.size(); ++j)
      copy_columns(call.stream, here.part(j * part(), here.size - j * part()), stride, piece(arriving, j), part(),
                   rows(), part());
  }

 private:
  std::pair<View, View> buffers(Dtype dtype) const {
    Arena& workspace = call.exchange.workspace();
    const View leaving = workspace.take(dtype, elements());
    return {leaving, workspace.take(dtype, elements())};
  }
  View piece(View buffer, int rank) const { return buffer.part(rank * rows() * part(), rows() * part()); }
  void place_rows(View whole, View rows_of_rank, int rank, bool in) const {
    const int64_t run = call.batch.length * part(), stride = run * call.groups.cp.size();
    const View place = whole.part(rank * run, whole.size - rank * run);
    if (in)
      copy_columns(call.stream, place, stride, rows_of_rank, run, call.batch.sequences, run);
    else
      copy_columns(call.stream, rows_of_rank, run, place, stride, call.batch.sequences, run);
  }
};

// Per-row numbers of whole sequences, in the order in which Turn puts the rows. `all` holds every rank's rows, or, for
// what is the same on all, one rank's.
template <class T>
const T* whole_sequences(const ContextAttention& call, const T* all, bool same_on_all) {
  const int size = call.groups.cp.size();
  const auto run = static_cast<size_t>(call.batch.length) * sizeof(T);
  T* whole =
      static_cast<T*>(call.exchange.workspace().take_bytes(static_cast<size_t>(call.batch.rows() * size) * sizeof(T)));
  for (int rank = 0; rank < size; ++rank)
    check(cudaMemcpy2DAsync(whole + rank * call.batch.length, run * static_cast<size_t>(size),
                            all + (same_on_all ? 0 : rank * call.batch.rows()), run, run,
                            static_cast<size_t>(call.batch.sequences), cudaMemcpyDeviceToDevice, call.stream.get()),
          "cudaMemcpy2DAsync");
  return whole;
}

struct Whole {
  AttentionShape shape;
  AttentionRows rows;
};
Whole whole_of(const ContextAttention& call) {
  const int64_t size = call.groups.cp.size();
  Whole whole{call.shape, {}};
  AttentionShape& s = whole.shape;
  s.queries *= size;
  s.keys *= size;
  s.heads /= size;
  s.kv_heads /= size;
  s.q_stride = s.out_stride = s.heads * s.head_width;
  s.kv_stride = s.kv_heads * s.head_width;
  s.first_head += call.groups.cp.rank() * s.heads;
  const int32_t *order = whole_sequences(call, call.batch.all_order, false),
                *documents = whole_sequences(call, call.batch.all_documents, false);
  whole.rows = {order, documents, order, documents, whole_sequences(call, call.batch.samples, true)};
  return whole;
}

// What the backward pass needs of the forward pass, in one piece of memory.
struct Saved {
  View q, k, v, out;
};
Saved saved_in(View memory, int64_t queries, int64_t keys) {
  return {memory.part(0, queries), memory.part(queries, keys), memory.part(queries + keys, keys),
          memory.part(queries + 2 * keys, queries)};
}

}  // namespace

View ulysses_forward(const ContextAttention& call, View out, View lse, View q, View k, View v, Arena& arena) {
  const AttentionShape& s = call.shape;
  const Turn queries{call, s.heads * s.head_width}, keys{call, s.kv_heads * s.head_width};
  const View memory = arena.take(q.dtype, 2 * (queries.elements() + keys.elements()));
  const Saved saved = saved_in(memory, queries.elements(), keys.elements());
  queries.to_sequences(saved.q, q, s.q_stride);
  keys.to_sequences(saved.k, k, s.kv_stride);
  keys.to_sequences(saved.v, v, s.kv_stride);
  const Whole whole = whole_of(call);
  attention_forward(call.stream.get(), saved.out, lse, saved.q, saved.k, saved.v, whole.shape, whole.rows, call.random,
                    call.dropout, false);
  queries.to_heads(out, s.out_stride, saved.out);
  return memory;
}

void ulysses_backward(const ContextAttention& call, View q_grad, View k_grad, View v_grad, View out_grad, View lse,
                      View memory) {
  const AttentionShape& s = call.shape;
  const Turn queries{call, s.heads * s.head_width}, keys{call, s.kv_heads * s.head_width};
  const Saved saved = saved_in(memory, queries.elements(), keys.elements());
  Arena& workspace = call.exchange.workspace();
  const Saved grad = saved_in(workspace.take(memory.dtype, memory.size), queries.elements(), keys.elements());
  const View delta = workspace.take(lse.dtype, lse.size);
  queries.to_sequences(grad.out, out_grad, s.out_stride);
  const Whole whole = whole_of(call);
  attention_delta(call.stream.get(), delta, grad.out, saved.out, whole.shape);
  attention_backward(call.stream.get(), {grad.q, false}, {grad.k, false}, {grad.v, false}, grad.out, saved.q, saved.k,
                     saved.v, lse, delta, whole.shape, whole.rows, call.random, call.dropout);
  queries.to_heads(q_grad, s.q_stride, grad.q);
  keys.to_heads(k_grad, s.kv_stride, grad.k);
  keys.to_heads(v_grad, s.kv_stride, grad.v);
}

}  // namespace train
