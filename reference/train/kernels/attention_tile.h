// SPDX-License-Identifier: MIT
//
// What attention's forward and backward passes share: which tiles of (queries x keys) there are, what a tile's queries
// see, and the scores of a tile, by one matrix product.
//
// A tile is kShort rows of the side that a block of work owns by at most kLong of the side it runs over. Rows nobody in
// the tile sees, or who see nobody, are trimmed at both ends: under causality that is half of the work, with packed
// documents far more.

#pragma once

#include <algorithm>
#include <cmath>

#include "reference/train/kernels/gemm.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/philox.h"
#include "reference/train/kernels/threads.h"

namespace train {

inline constexpr int64_t kShort = 32, kLong = 128;
inline constexpr int64_t kMaxHeadWidth = 256;            // what a thread's scratch memory has room for
inline constexpr int64_t kHeadShift = int64_t{1} << 20;  // a head's keys among the features of random numbers

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

struct AttentionProblem {
  AttentionShape shape;
  AttentionRows rows;
  RandomStream random;
  double dropout;

  int64_t group() const { return shape.heads / shape.kv_heads; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.head_width)); }
};

inline void expect_attention(const char* kernel, const AttentionShape& s) {
  expect(s.kv_heads > 0 && s.heads % s.kv_heads == 0, kernel, "a multiple of kv_heads as heads");
  expect(s.head_width <= kMaxHeadWidth, kernel, "heads of at most 256 columns");
  expect(s.q_stride >= s.heads * s.head_width && s.out_stride >= s.heads * s.head_width &&
             s.kv_stride >= s.kv_heads * s.head_width,
         kernel, "rows as wide as their heads");
}

// Pieces of a thread's scratch memory, one after another.
class Pieces {
 public:
  template <class W>
  W* take(int64_t count) {
    W* piece = reinterpret_cast<W*>(next_);
    next_ += (static_cast<size_t>(count) * sizeof(W) + 63) / 64 * 64;
    return piece;
  }

 private:
  char* next_ = static_cast<char*>(scratch());
};

template <class W>
struct Matrix {
  const W* data;
  int64_t stride;
};
// Rows of an operand in the wide type: where they lie, or widened into `room`.
template <class T>
LOCKSTEP_INLINE Matrix<Wide<T>> rows_of(const T* from, int64_t stride, int64_t rows, int64_t columns, Wide<T>* room) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    return {from, stride};
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      const T* in = from + r * stride;
      Wide<T>* out = room + r * columns;
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) out[c] = load(in[c]);
    }
    return {room, columns};
  }
}

// The range of `other` rows outside which no row can see, or be seen by, a row of `tile`. Rows are numbers in the whole
// arrays; the keys' side is asked if keys_of.
inline Range partners(const AttentionProblem& p, Range tile, Range other, bool keys_of) {
  const int32_t *order = keys_of ? p.rows.q_order : p.rows.k_order,
                *documents = keys_of ? p.rows.q_documents : p.rows.k_documents;
  const int32_t *their_order = keys_of ? p.rows.k_order : p.rows.q_order,
                *their_documents = keys_of ? p.rows.k_documents : p.rows.q_documents;
  const auto ends = std::minmax_element(documents + tile.begin, documents + tile.end);
  const int32_t low = *ends.first, high = *ends.second;
  const int32_t edge = keys_of ? *std::max_element(order + tile.begin, order + tile.end)
                               : *std::min_element(order + tile.begin, order + tile.end);
  const auto may_meet = [&](int64_t row) {
    return their_documents[row] >= low && their_documents[row] <= high &&
           (keys_of ? their_order[row] <= edge : their_order[row] >= edge);
  };
  while (other.begin < other.end && !may_meet(other.begin)) ++other.begin;
  while (other.begin < other.end && !may_meet(other.end - 1)) --other.end;
  return other;
}

// One query's view of a tile's keys: scores become scaled scores, -inf where the key is not seen.
template <class W>
LOCKSTEP_INLINE void mask_row(W* scores, const AttentionProblem& p, W scale, int64_t query, Range keys) {
  const int32_t order = p.rows.q_order[query], document = p.rows.q_documents[query];
  const int32_t *k_order = p.rows.k_order + keys.begin, *k_documents = p.rows.k_documents + keys.begin;
  const int64_t count = keys.size();
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const bool seen = (k_order[j] <= order) & (k_documents[j] == document);
    scores[j] = seen ? scores[j] * scale : -std::numeric_limits<W>::infinity();
  }
}

inline bool consecutive(const int32_t* order, int64_t count) {
  for (int64_t j = 1; j < count; ++j)
    if (order[j] != order[0] + j) return false;
  return true;
}

// What dropout multiplies each probability of a query's row with: 0 or 1 / (1 - p). Keys usually are a run of the
// sequence; their numbers then come in whole blocks.
template <class W>
LOCKSTEP_INLINE void kept_row(W* kept, const AttentionProblem& p, int64_t query, int64_t head, Range keys, bool run) {
  const int32_t* order = p.rows.k_order + keys.begin;
  const int64_t first = (p.shape.first_head + head) * kHeadShift, count = keys.size();
  const uint32_t threshold = threshold_of(p.dropout);
  const W factor = static_cast<W>(1 / (1 - p.dropout));
  uint32_t room[kLong + kRandomSlack];
  const uint32_t* words = room;
  if (run) {
    words = random_row(room, p.random, p.rows.samples[query], p.rows.q_order[query], first + order[0], count);
  } else {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t feature = first + order[j];
      room[j] = random_words(p.random, p.rows.samples[query], p.rows.q_order[query],
                             feature / 4)[static_cast<size_t>(feature % 4)];
    }
  }
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) kept[j] = words[j] >> 8 >= threshold ? factor : W{0};
}

}  // namespace train
