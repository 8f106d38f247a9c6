// SPDX-License-Identifier: MIT
//
// Attention, forward: a block of work is a few queries of one head, which run over the tiles of keys they see with an
// online softmax (Dao et al. 2205.14135, algorithm 1): what is summed so far is shrunk when a larger score turns up.

#include <limits>

#include "reference/train/kernels/attention_tile.h"

namespace train {

namespace {

template <class T, class U>
struct Forward {
  U* out;
  Wide<T>* lse;
  const T *q, *k, *v;
};

// The state of a block: for each of its queries the largest score, the sum of exp(score - largest) and the values
// summed with these weights.
template <class W>
struct Online {
  W *largest, *total, *sum;
};

// Scores of one query's row become weights; returns what the sums so far are to be multiplied with.
template <class W>
LOCKSTEP_INLINE W soften(W* row, int64_t count, W& largest, W& total) {
  constexpr W kNone = -std::numeric_limits<W>::infinity();
  const W next = largest_over<W>(count, largest, [=](int64_t j) { return row[j]; });
  const W shift = next == kNone ? W{0} : next;  // a row that has seen nothing yet
  const W shrink = exp_of(largest - shift);
  const W sum = sum_over<W>(count, [=](int64_t j) {
    row[j] = exp_of(row[j] - shift);
    return row[j];
  });
  total = total * shrink + sum;
  largest = next;
  return shrink;
}

template <class W>
LOCKSTEP_INLINE void drop(W* row, const AttentionProblem& p, int64_t query, int64_t head, Range keys, bool run) {
  W kept[kLong];
  kept_row(kept, p, query, head, keys, run);
  const int64_t count = keys.size();
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) row[j] *= kept[j];
}

// sum / total into out, or combined with what out holds of other keys (the two weighted by their shares of the whole).
template <class T, class W>
LOCKSTEP_INLINE void finish_row(T* out, W& lse, const W* sum, W largest, W total, int64_t width, bool merge) {
  constexpr W kNone = -std::numeric_limits<W>::infinity();
  const W before = merge ? lse : kNone;
  const W mine = total > 0 ? largest + std::log(total) : kNone;
  if (merge && mine == kNone) return;
  const W top = before > mine ? before : mine;
  W theirs = 0, ours = total > 0 ? 1 / total : W{0};
  lse = mine;
  if (before != kNone) {
    const W their_share = std::exp(before - top), our_share = std::exp(mine - top), both = their_share + our_share;
    theirs = their_share / both;
    ours = our_share / both / total;
    lse = top + std::log(both);
  }
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    const W value = sum[c] * ours;
    out[c] = store<T>(theirs > 0 ? value + theirs * load(out[c]) : value);
  }
}

template <class T, class U>
LOCKSTEP_INLINE void attend(const AttentionProblem& p, const Forward<T, U>& at, Range queries, Range all_keys,
                            int64_t head, bool merge) {
  using W = Wide<T>;
  const AttentionShape& s = p.shape;
  const int64_t width = s.head_width, count = queries.size(), kv = head / p.group() * width;
  Pieces pieces;
  W *scores = pieces.take<W>(kShort * kLong), *sum = pieces.take<W>(kShort * width);
  W *q_room = pieces.take<W>(kShort * width), *kv_room = pieces.take<W>(kLong * width);
  W largest[kShort], total[kShort];
  std::fill(largest, largest + count, -std::numeric_limits<W>::infinity());
  std::fill(total, total + count, W{0});
  std::fill(sum, sum + count * width, W{0});
  const Matrix<W> q = rows_of(at.q + queries.begin * s.q_stride + head * width, s.q_stride, count, width, q_room);
  const Range seen = partners(p, queries, all_keys, true);
  for (Range keys{seen.begin, 0}; keys.begin < seen.end; keys.begin = keys.end) {
    keys.end = std::min(seen.end, keys.begin + kLong);
    const Matrix<W> k = rows_of(at.k + keys.begin * s.kv_stride + kv, s.kv_stride, keys.size(), width, kv_room);
    gemm(false, true, count, keys.size(), width, q.data, q.stride, k.data, k.stride, false, scores, keys.size());
    const bool run = p.dropout > 0 && consecutive(p.rows.k_order + keys.begin, keys.size());
    for (int64_t i = 0; i < count; ++i) {
      W* row = scores + i * keys.size();
      mask_row(row, p, static_cast<W>(p.scale()), queries.begin + i, keys);
      const W shrink = soften(row, keys.size(), largest[i], total[i]);
      if (p.dropout > 0) drop(row, p, queries.begin + i, head, keys, run);
      if (keys.begin == seen.begin) continue;  // nothing summed yet
      W* line = sum + i * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) line[c] *= shrink;
    }
    const Matrix<W> v = rows_of(at.v + keys.begin * s.kv_stride + kv, s.kv_stride, keys.size(), width, kv_room);
    gemm(false, false, count, width, keys.size(), scores, keys.size(), v.data, v.stride, keys.begin != seen.begin, sum,
         width);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = queries.begin + i;
    finish_row(at.out + row * s.out_stride + head * width, at.lse[row * s.heads + head], sum + i * width, largest[i],
               total[i], width, merge);
  }
}

template <class T, class U>
void forward(const AttentionProblem& p, const Forward<T, U>& at, bool merge) {
  const AttentionShape& s = p.shape;
  const int64_t tiles = (s.queries + kShort - 1) / kShort;
  for_blocks(s.sequences * s.heads * tiles, [&](int64_t block) {
    const int64_t sequence = block / tiles / s.heads, head = block / tiles % s.heads;
    const int64_t begin = block % tiles * kShort, end = std::min(s.queries, begin + kShort);
    attend(p, at, {sequence * s.queries + begin, sequence * s.queries + end},
           {sequence * s.keys, (sequence + 1) * s.keys}, head, merge);
  });
}

}  // namespace

void attention_forward(cudaStream_t stream, View out, View lse, View q, View k, View v, const AttentionShape& shape,
                       const AttentionRows& rows, RandomStream random, double dropout, bool merge) {
  expect_attention("attention_forward", shape);
  expect((out.dtype == q.dtype || out.dtype == wide(q.dtype)) && k.dtype == q.dtype && v.dtype == q.dtype &&
             lse.dtype == wide(q.dtype) && lse.size >= shape.sequences * shape.queries * shape.heads,
         "attention_forward", "views of one type, out of it or wide, and a wide lse [rows, heads]");
  prepare_blas();
  launch(stream, [=, p = AttentionProblem{shape, rows, random, dropout}] {
    with_type(q.dtype, [&](auto type) {
      using T = decltype(type);
      const auto run = [&](auto out_type) {
        using U = decltype(out_type);
        forward(p, Forward<T, U>{data_of<U>(out), data_of<Wide<T>>(lse), data_of<T>(q), data_of<T>(k), data_of<T>(v)},
                merge);
      };
      if (out.dtype == wide(q.dtype))
        run(Wide<T>{});
      else
        run(T{});
    });
  });
}

void attention_delta(cudaStream_t stream, View delta, View out_grad, View out, const AttentionShape& shape) {
  expect(out_grad.dtype == out.dtype && delta.dtype == wide(out.dtype) &&
             delta.size >= shape.sequences * shape.queries * shape.heads,
         "attention_delta", "out and out_grad of one type and a wide delta [rows, heads]");
  launch(stream, [=] {
    with_type(out.dtype, [&](auto type) {
      using T = decltype(type);
      for_pieces(shape.sequences * shape.queries, kShort, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          for (int64_t head = 0; head < shape.heads; ++head) {
            const T* a = data_of<T>(out_grad) + row * shape.out_stride + head * shape.head_width;
            const T* b = data_of<T>(out) + row * shape.out_stride + head * shape.head_width;
            data_of<Wide<T>>(delta)[row * shape.heads + head] =
                sum_over<Wide<T>>(shape.head_width, [=](int64_t c) { return load(a[c]) * load(b[c]); });
          }
      });
    });
  });
}

}  // namespace train
