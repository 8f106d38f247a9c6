// SPDX-License-Identifier: MIT
//
// Causal softmax attention with an online softmax (Dao et al. 2205.14135, algorithm 1): plain loops.

#include <cmath>
#include <limits>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/philox.h"
#include "reference/train/kernels/threads.h"

namespace train {

namespace {

constexpr int64_t kHeadShift = int64_t{1} << 20;  // a head's keys among the features of random numbers

struct Problem {
  AttentionShape shape;
  AttentionRows rows;
  RandomStream random;
  double dropout;

  int64_t group() const { return shape.heads / shape.kv_heads; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.head_width)); }
  bool sees(int64_t query, int64_t key) const {
    return rows.k_order[key] <= rows.q_order[query] && rows.k_documents[key] == rows.q_documents[query];
  }
  // What dropout multiplies the probability with.
  double kept(int64_t query, int64_t key, int64_t head) const {
    if (dropout == 0) return 1;
    const int64_t feature = (shape.first_head + head) * kHeadShift + rows.k_order[key];
    const Words words = random_words(random, rows.samples[query], rows.q_order[query], feature / 4);
    return words[static_cast<size_t>(feature % 4)] >> 8 >= threshold_of(dropout) ? 1 / (1 - dropout) : 0;
  }
};

template <class T>
Wide<T> dot(const T* a, const T* b, int64_t count) {
  Wide<T> sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += load(a[i]) * load(b[i]);
  return sum;
}

// One query of one head over all keys of its sequence.
template <class T>
void attend(const Problem& problem, T* out, Wide<T>& lse, const T* q, const T* k, const T* v, int64_t query,
            int64_t first_key, int64_t head, bool merge) {
  using W = Wide<T>;
  const AttentionShape& s = problem.shape;
  constexpr W kNone = -std::numeric_limits<W>::infinity();
  W* sum = static_cast<W*>(scratch());
  for (int64_t i = 0; i < s.head_width; ++i) sum[i] = merge ? load(out[i]) : 0;
  W largest = merge ? lse : kNone, total = merge && lse != kNone ? 1 : 0;
  for (int64_t j = 0; j < s.keys; ++j) {
    if (!problem.sees(query, first_key + j)) continue;
    const W score = dot(q, k + j * s.kv_stride, s.head_width) * static_cast<W>(problem.scale());
    const W next = std::max(largest, score), shrink = std::exp(largest - next), weight = std::exp(score - next);
    const W kept = weight * static_cast<W>(problem.kept(query, first_key + j, head));
    total = total * shrink + weight;
    for (int64_t i = 0; i < s.head_width; ++i) sum[i] = sum[i] * shrink + kept * load(v[j * s.kv_stride + i]);
    largest = next;
  }
  for (int64_t i = 0; i < s.head_width; ++i) out[i] = total > 0 ? store<T>(sum[i] / total) : T{};
  lse = total > 0 ? largest + std::log(total) : kNone;
}

template <class U, class W>
void give(U* to, bool add_it, const W* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = store<U>(add_it ? static_cast<W>(load(to[i])) + from[i] : from[i]);
}

template <class T>
struct Operands {
  const T *out_grad, *q, *k, *v;
  const Wide<T>*lse, *delta;
};

// The probability of (query, key) and the gradient of its score, dropout applied to the first.
template <class T>
void pair_gradient(const Problem& problem, const Operands<T>& in, int64_t query, int64_t key, int64_t head,
                   Wide<T>& dropped, Wide<T>& score_grad) {
  using W = Wide<T>;
  const AttentionShape& s = problem.shape;
  const int64_t kv_head = head / problem.group();
  const W score = dot(in.q + query * s.q_stride + head * s.head_width,
                      in.k + key * s.kv_stride + kv_head * s.head_width, s.head_width) *
                  static_cast<W>(problem.scale());
  const W probability = std::exp(score - in.lse[query * s.heads + head]);
  const W kept = static_cast<W>(problem.kept(query, key, head));
  const W grad = dot(in.out_grad + query * s.out_stride + head * s.head_width,
                     in.v + key * s.kv_stride + kv_head * s.head_width, s.head_width);
  dropped = probability * kept;
  score_grad = probability * (kept * grad - in.delta[query * s.heads + head]) * static_cast<W>(problem.scale());
}

template <class T, class U>
void query_gradient(const Problem& problem, const Operands<T>& in, U* q_grad, bool add_it, int64_t query,
                    int64_t head) {
  using W = Wide<T>;
  const AttentionShape& s = problem.shape;
  W* sum = static_cast<W*>(scratch());
  for (int64_t i = 0; i < s.head_width; ++i) sum[i] = 0;
  for (int64_t j = 0; j < s.keys; ++j) {
    const int64_t key = query / s.queries * s.keys + j;
    if (!problem.sees(query, key)) continue;
    W dropped, grad;
    pair_gradient(problem, in, query, key, head, dropped, grad);
    const T* k = in.k + key * s.kv_stride + head / problem.group() * s.head_width;
    for (int64_t i = 0; i < s.head_width; ++i) sum[i] += grad * load(k[i]);
  }
  give(q_grad + query * s.q_stride + head * s.head_width, add_it, sum, s.head_width);
}

template <class T, class U>
void key_gradient(const Problem& problem, const Operands<T>& in, U* k_grad, bool add_k, U* v_grad, bool add_v,
                  int64_t key, int64_t kv_head) {
  using W = Wide<T>;
  const AttentionShape& s = problem.shape;
  W *k_sum = static_cast<W*>(scratch()), *v_sum = k_sum + s.head_width;
  for (int64_t i = 0; i < 2 * s.head_width; ++i) k_sum[i] = 0;
  for (int64_t head = kv_head * problem.group(); head < (kv_head + 1) * problem.group(); ++head)
    for (int64_t i = 0; i < s.queries; ++i) {
      const int64_t query = key / s.keys * s.queries + i;
      if (!problem.sees(query, key)) continue;
      W dropped, grad;
      pair_gradient(problem, in, query, key, head, dropped, grad);
      const T *q = in.q + query * s.q_stride + head * s.head_width,
              *out_grad = in.out_grad + query * s.out_stride + head * s.head_width;
      for (int64_t c = 0; c < s.head_width; ++c) {
        k_sum[c] += grad * load(q[c]);
        v_sum[c] += dropped * load(out_grad[c]);
      }
    }
  give(k_grad + key * s.kv_stride + kv_head * s.head_width, add_k, k_sum, s.head_width);
  give(v_grad + key * s.kv_stride + kv_head * s.head_width, add_v, v_sum, s.head_width);
}

}  // namespace

void attention_forward(cudaStream_t stream, View out, View lse, View q, View k, View v, const AttentionShape& shape,
                       const AttentionRows& rows, RandomStream random, double dropout, bool merge) {
  expect(out.dtype == q.dtype && k.dtype == q.dtype && v.dtype == q.dtype && lse.dtype == wide(q.dtype),
         "attention_forward", "views of one type and a wide lse");
  launch(stream, [=, problem = Problem{shape, rows, random, dropout}] {
    with_type(q.dtype, [&](auto type) {
      using T = decltype(type);
      const AttentionShape& s = problem.shape;
      for_blocks(s.sequences * s.queries, [&](int64_t query) {
        const int64_t first_key = query / s.queries * s.keys;
        for (int64_t head = 0; head < s.heads; ++head) {
          const int64_t kv = first_key * s.kv_stride + head / problem.group() * s.head_width;
          attend(problem, data_of<T>(out) + query * s.out_stride + head * s.head_width,
                 data_of<Wide<T>>(lse)[query * s.heads + head],
                 data_of<T>(q) + query * s.q_stride + head * s.head_width, data_of<T>(k) + kv, data_of<T>(v) + kv,
                 query, first_key, head, merge);
        }
      });
    });
  });
}

void attention_delta(cudaStream_t stream, View delta, View out_grad, View out, const AttentionShape& shape) {
  expect(out_grad.dtype == out.dtype && delta.dtype == wide(out.dtype), "attention_delta",
         "out and out_grad of one type and a wide delta");
  launch(stream, [=] {
    with_type(out.dtype, [&](auto type) {
      using T = decltype(type);
      for_pieces(shape.sequences * shape.queries, 64, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          for (int64_t head = 0; head < shape.heads; ++head) {
            const int64_t at = row * shape.out_stride + head * shape.head_width;
            data_of<Wide<T>>(delta)[row * shape.heads + head] =
                dot(data_of<T>(out_grad) + at, data_of<T>(out) + at, shape.head_width);
          }
      });
    });
  });
}

void attention_backward(cudaStream_t stream, Into q_grad, Into k_grad, Into v_grad, View out_grad, View q, View k,
                        View v, View lse, View delta, const AttentionShape& shape, const AttentionRows& rows,
                        RandomStream random, double dropout) {
  expect(out_grad.dtype == q.dtype && k.dtype == q.dtype && v.dtype == q.dtype && lse.dtype == wide(q.dtype) &&
             delta.dtype == wide(q.dtype),
         "attention_backward", "views of one type, lse and delta wide");
  expect(q_grad.view.dtype == k_grad.view.dtype && k_grad.view.dtype == v_grad.view.dtype &&
             (q_grad.view.dtype == q.dtype || q_grad.view.dtype == wide(q.dtype)),
         "attention_backward", "three gradients of the views' type or wide");
  launch(stream, [=, problem = Problem{shape, rows, random, dropout}] {
    with_type(q.dtype, [&](auto type) {
      using T = decltype(type);
      using W = Wide<T>;
      const AttentionShape& s = problem.shape;
      const Operands<T> in{data_of<T>(out_grad), data_of<T>(q),   data_of<T>(k),
                           data_of<T>(v),        data_of<W>(lse), data_of<W>(delta)};
      with_type(q_grad.view.dtype, [&](auto grad_type) {
        using U = decltype(grad_type);
        for_blocks(s.sequences * s.queries, [&](int64_t query) {
          for (int64_t head = 0; head < s.heads; ++head)
            query_gradient(problem, in, data_of<U>(q_grad.view), q_grad.add, query, head);
        });
        for_blocks(s.sequences * s.keys, [&](int64_t key) {
          for (int64_t head = 0; head < s.kv_heads; ++head)
            key_gradient(problem, in, data_of<U>(k_grad.view), k_grad.add, data_of<U>(v_grad.view), v_grad.add, key,
                         head);
        });
      });
    });
  });
}

}  // namespace train
