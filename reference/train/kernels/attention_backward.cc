// SPDX-License-Identifier: MIT
//
// Attention, backward (Dao et al. 2205.14135, algorithm 4), in two passes that share nothing they write: blocks of
// queries sum the gradients of their queries over the keys, then blocks of keys those of their keys and values over the
// queries. Both make the probabilities anew from the scores and lse; a single pass would save two of seven products and
// need memory for the whole of one of the sums.
//
// With P the probabilities, M dropout's factors, S the scaled scores: dV = (P M)^T dO; dP = M (dO V^T);
// dS = P (dP - delta), for the softmax; dQ = scale dS K; dK = scale dS^T Q.

#include <limits>

#include "reference/train/kernels/attention_tile.h"

namespace train {

namespace {

template <class T, class U>
struct Backward {
  U *q_grad, *k_grad, *v_grad;
  bool add_q, add_k, add_v;
  const T *out_grad, *q, *k, *v;
  const Wide<T>*lse, *delta;
};

// A tile's probabilities with dropout, and scale dS, [queries, keys] each.
template <class W>
struct Tile {
  W *dropped, *scores;
};

template <class W>
LOCKSTEP_INLINE void gradient_row(W* dropped, W* scores, const AttentionProblem& p, W scale, W lse, W delta,
                                  int64_t query, int64_t head, Range keys, bool run) {
  mask_row(scores, p, scale, query, keys);
  const int64_t count = keys.size();
  W kept[kLong];
  if (p.dropout > 0)
    kept_row(kept, p, query, head, keys, run);
  else
    for (W& factor : kept) factor = 1;
  lse = lse == -std::numeric_limits<W>::infinity() ? W{0} : lse;  // sees no key: every score is -inf as well
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const W probability = exp_of(scores[j] - lse), grad = dropped[j];
    dropped[j] = probability * kept[j];
    scores[j] = probability * (kept[j] * grad - delta) * scale;
  }
}

// Operands of a tile in the wide type.
template <class W>
struct Operands {
  Matrix<W> q, out_grad, k, v;
};

template <class T, class W>
LOCKSTEP_INLINE void gradient_tile(const Tile<W>& tile, const AttentionProblem& p, const Operands<W>& in, const T* lse,
                                   const T* delta, Range queries, Range keys, int64_t head) {
  const int64_t m = queries.size(), n = keys.size(), width = p.shape.head_width;
  gemm(false, true, m, n, width, in.q.data, in.q.stride, in.k.data, in.k.stride, false, tile.scores, n);
  gemm(false, true, m, n, width, in.out_grad.data, in.out_grad.stride, in.v.data, in.v.stride, false, tile.dropped, n);
  const bool run = p.dropout > 0 && consecutive(p.rows.k_order + keys.begin, n);
  for (int64_t i = 0; i < m; ++i) {
    const int64_t at = (queries.begin + i) * p.shape.heads + head;
    gradient_row(tile.dropped + i * n, tile.scores + i * n, p, static_cast<W>(p.scale()), lse[at], delta[at],
                 queries.begin + i, head, keys, run);
  }
}

template <class U, class W>
LOCKSTEP_INLINE void give(U* to, int64_t stride, bool add_it, const W* from, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    U* line = to + r * stride;
    const W* sum = from + r * columns;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) line[c] = store<U>(add_it ? static_cast<W>(load(line[c])) + sum[c] : sum[c]);
  }
}

// Where a block keeps its operands and sums.
template <class W>
struct Room {
  Tile<W> tile;
  W *q, *out_grad, *k, *v, *sum, *second_sum;
};
template <class W>
Room<W> make_room(int64_t width) {
  Pieces pieces;
  Room<W> room{};
  room.tile = {pieces.take<W>(kShort * kLong), pieces.take<W>(kShort * kLong)};
  room.sum = pieces.take<W>(kShort * width);
  room.second_sum = pieces.take<W>(kShort * width);
  if constexpr (std::is_same_v<W, float>)  // bf16 is widened there
    for (W** operand : {&room.q, &room.out_grad, &room.k, &room.v}) *operand = pieces.take<W>(kLong * width);
  return room;
}

template <class T, class U>
LOCKSTEP_INLINE void query_gradients(const AttentionProblem& p, const Backward<T, U>& at, Range queries, Range all_keys,
                                     int64_t head) {
  using W = Wide<T>;
  const AttentionShape& s = p.shape;
  const int64_t width = s.head_width, count = queries.size(), kv = head / p.group() * width;
  const Room<W> room = make_room<W>(width);
  std::fill(room.sum, room.sum + count * width, W{0});
  Operands<W> in;
  in.q = rows_of(at.q + queries.begin * s.q_stride + head * width, s.q_stride, count, width, room.q);
  in.out_grad =
      rows_of(at.out_grad + queries.begin * s.out_stride + head * width, s.out_stride, count, width, room.out_grad);
  const Range seen = partners(p, queries, all_keys, true);
  for (Range keys{seen.begin, 0}; keys.begin < seen.end; keys.begin = keys.end) {
    keys.end = std::min(seen.end, keys.begin + kLong);
    in.k = rows_of(at.k + keys.begin * s.kv_stride + kv, s.kv_stride, keys.size(), width, room.k);
    in.v = rows_of(at.v + keys.begin * s.kv_stride + kv, s.kv_stride, keys.size(), width, room.v);
    gradient_tile(room.tile, p, in, at.lse, at.delta, queries, keys, head);
    gemm(false, false, count, width, keys.size(), room.tile.scores, keys.size(), in.k.data, in.k.stride, true, room.sum,
         width);
  }
  give(at.q_grad + queries.begin * s.q_stride + head * width, s.q_stride, at.add_q, room.sum, count, width);
}

template <class T, class U>
LOCKSTEP_INLINE void key_gradients(const AttentionProblem& p, const Backward<T, U>& at, Range keys, Range all_queries,
                                   int64_t kv_head) {
  using W = Wide<T>;
  const AttentionShape& s = p.shape;
  const int64_t width = s.head_width, count = keys.size(), kv = keys.begin * s.kv_stride + kv_head * width;
  const Room<W> room = make_room<W>(width);
  std::fill(room.sum, room.sum + count * width, W{0});
  std::fill(room.second_sum, room.second_sum + count * width, W{0});
  Operands<W> in;
  in.k = rows_of(at.k + kv, s.kv_stride, count, width, room.k);
  in.v = rows_of(at.v + kv, s.kv_stride, count, width, room.v);
  const Range seeing = partners(p, keys, all_queries, false);
  for (int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head)
    for (Range queries{seeing.begin, 0}; queries.begin < seeing.end; queries.begin = queries.end) {
      queries.end = std::min(seeing.end, queries.begin + kLong);
      const int64_t m = queries.size();
      in.q = rows_of(at.q + queries.begin * s.q_stride + head * width, s.q_stride, m, width, room.q);
      in.out_grad =
          rows_of(at.out_grad + queries.begin * s.out_stride + head * width, s.out_stride, m, width, room.out_grad);
      gradient_tile(room.tile, p, in, at.lse, at.delta, queries, keys, head);
      gemm(true, false, count, width, m, room.tile.scores, count, in.q.data, in.q.stride, true, room.sum, width);
      gemm(true, false, count, width, m, room.tile.dropped, count, in.out_grad.data, in.out_grad.stride, true,
           room.second_sum, width);
    }
  give(at.k_grad + kv, s.kv_stride, at.add_k, room.sum, count, width);
  give(at.v_grad + kv, s.kv_stride, at.add_v, room.second_sum, count, width);
}

template <class T, class U>
void backward(const AttentionProblem& p, const Backward<T, U>& at) {
  const AttentionShape& s = p.shape;
  const int64_t query_tiles = (s.queries + kShort - 1) / kShort, key_tiles = (s.keys + kShort - 1) / kShort;
  for_blocks(s.sequences * s.heads * query_tiles, [&](int64_t block) {
    const int64_t sequence = block / query_tiles / s.heads, head = block / query_tiles % s.heads;
    const int64_t begin = block % query_tiles * kShort, end = std::min(s.queries, begin + kShort);
    query_gradients(p, at, {sequence * s.queries + begin, sequence * s.queries + end},
                    {sequence * s.keys, (sequence + 1) * s.keys}, head);
  });
  for_blocks(s.sequences * s.kv_heads * key_tiles, [&](int64_t block) {
    const int64_t sequence = block / key_tiles / s.kv_heads, head = block / key_tiles % s.kv_heads;
    const int64_t begin = block % key_tiles * kShort, end = std::min(s.keys, begin + kShort);
    key_gradients(p, at, {sequence * s.keys + begin, sequence * s.keys + end},
                  {sequence * s.queries, (sequence + 1) * s.queries}, head);
  });
}

}  // namespace

void attention_backward(cudaStream_t stream, Into q_grad, Into k_grad, Into v_grad, View out_grad, View q, View k,
                        View v, View lse, View delta, const AttentionShape& shape, const AttentionRows& rows,
                        RandomStream random, double dropout) {
  expect_attention("attention_backward", shape);
  expect(out_grad.dtype == q.dtype && k.dtype == q.dtype && v.dtype == q.dtype && lse.dtype == wide(q.dtype) &&
             delta.dtype == wide(q.dtype),
         "attention_backward", "views of one type, lse and delta wide");
  expect(q_grad.view.dtype == k_grad.view.dtype && k_grad.view.dtype == v_grad.view.dtype &&
             (q_grad.view.dtype == q.dtype || q_grad.view.dtype == wide(q.dtype)),
         "attention_backward", "three gradients of the views' type or wide");
  prepare_blas();
  launch(stream, [=, p = AttentionProblem{shape, rows, random, dropout}] {
    with_type(q.dtype, [&](auto type) {
      using T = decltype(type);
      using W = Wide<T>;
      const auto run = [&](auto grad_type) {
        using U = decltype(grad_type);
        backward(p, Backward<T, U>{data_of<U>(q_grad.view), data_of<U>(k_grad.view), data_of<U>(v_grad.view),
                                   q_grad.add, k_grad.add, v_grad.add, data_of<T>(out_grad), data_of<T>(q),
                                   data_of<T>(k), data_of<T>(v), data_of<W>(lse), data_of<W>(delta)});
      };
      if (q_grad.view.dtype == wide(q.dtype))
        run(W{});
      else
        run(T{});
    });
  });
}

}  // namespace train
