// SPDX-License-Identifier: MIT

#include <cmath>
#include <limits>

#include "reference/train/kernels/philox.h"
#include "tests/train/kernels/harness.h"

namespace train::test {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// A problem as plain arrays, and what it gives by the definition in double.
struct Case {
  AttentionShape shape;
  std::vector<int32_t> q_order, q_documents, k_order, k_documents;
  std::vector<int64_t> samples;
  Values q, k, v;
  double dropout = 0;
  RandomStream random{7, RandomUse::attention_dropout, 3};

  int64_t rows() const { return shape.sequences * shape.queries; }
  int64_t key_rows() const { return shape.sequences * shape.keys; }
  int64_t group() const { return shape.heads / shape.kv_heads; }
  bool sees(int64_t row, int64_t key) const {
    return k_order[static_cast<size_t>(key)] <= q_order[static_cast<size_t>(row)] &&
           k_documents[static_cast<size_t>(key)] == q_documents[static_cast<size_t>(row)];
  }
  double kept(int64_t row, int64_t key, int64_t head) const {
    if (dropout == 0) return 1;
    const int64_t feature = ((shape.first_head + head) << 20) + k_order[static_cast<size_t>(key)];
    const Words words =
        random_words(random, samples[static_cast<size_t>(row)], q_order[static_cast<size_t>(row)], feature / 4);
    return uniform_of(words[static_cast<size_t>(feature % 4)]) >= dropout ? 1 / (1 - dropout) : 0;
  }
};

struct Result {
  Values out, lse;
};

Result attend(const Case& c) {
  const AttentionShape& s = c.shape;
  Result result{Values(static_cast<size_t>(c.rows() * s.out_stride)),
                Values(static_cast<size_t>(c.rows() * s.heads), kNone)};
  for (int64_t row = 0; row < c.rows(); ++row)
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t first = row / s.queries * s.keys, kv = head / c.group() * s.head_width;
      Values scores(static_cast<size_t>(s.keys), kNone);
      double largest = kNone, total = 0;
      for (int64_t j = 0; j < s.keys; ++j) {
        if (!c.sees(row, first + j)) continue;
        double dot = 0;
        for (int64_t i = 0; i < s.head_width; ++i)
          dot += c.q[static_cast<size_t>(row * s.q_stride + head * s.head_width + i)] *
                 c.k[static_cast<size_t>((first + j) * s.kv_stride + kv + i)];
        scores[static_cast<size_t>(j)] = dot / std::sqrt(static_cast<double>(s.head_width));
        largest = std::max(largest, scores[static_cast<size_t>(j)]);
      }
      if (largest == kNone) continue;
      for (const double score : scores) total += std::exp(score - largest);
      for (int64_t j = 0; j < s.keys; ++j) {
        if (scores[static_cast<size_t>(j)] == kNone) continue;
        const double p = std::exp(scores[static_cast<size_t>(j)] - largest) / total * c.kept(row, first + j, head);
        for (int64_t i = 0; i < s.head_width; ++i)
          result.out[static_cast<size_t>(row * s.out_stride + head * s.head_width + i)] +=
              p * c.v[static_cast<size_t>((first + j) * s.kv_stride + kv + i)];
      }
      result.lse[static_cast<size_t>(row * s.heads + head)] = largest + std::log(total);
    }
  return result;
}

class Attention : public KernelTest {
 protected:
  Case make(AttentionShape shape, double dropout, bool documents) {
    Case c;
    c.shape = shape;
    c.dropout = dropout;
    for (int64_t s = 0; s < shape.sequences; ++s) {
      for (int64_t i = 0; i < shape.queries; ++i) {
        c.q_order.push_back(static_cast<int32_t>(i + std::max<int64_t>(0, shape.keys - shape.queries)));
        c.q_documents.push_back(documents ? c.q_order.back() / 5 : 0);
        c.samples.push_back(40 + s);
      }
      for (int64_t i = 0; i < shape.keys; ++i) {
        c.k_order.push_back(static_cast<int32_t>(i));
        c.k_documents.push_back(documents ? c.k_order.back() / 5 : 0);
      }
    }
    c.q = normal(c.rows() * shape.q_stride);
    c.k = normal(c.key_rows() * shape.kv_stride);
    c.v = normal(c.key_rows() * shape.kv_stride);
    return c;
  }
  AttentionRows rows_of(const Case& c) {
    return {put_indices(c.q_order), put_indices(c.q_documents), put_indices(c.k_order), put_indices(c.k_documents),
            put_indices(c.samples)};
  }
};
LOCKSTEP_ALL_TYPES(Attention);

const AttentionShape kShapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1},
    {0, 4, 4, 2, 2, 8, 16, 16, 16},
    {2, 7, 7, 2, 2, 4, 24, 24, 8},
    {1, 70, 70, 4, 2, 8, 40, 40, 32},
    {2, 9, 13, 6, 2, 6, 36, 12, 40},
    {1, 13, 9, 3, 1, 2, 6, 2, 6},
    {1, 130, 130, 2, 1, 16, 32, 16, 32, 5},
};

double forward_bound(Dtype dtype) { return dtype == Dtype::bf16 ? 2 : 200; }

TEST_P(Attention, ForwardIsTheDefinition) {
  for (const AttentionShape& shape : kShapes)
    for (const bool documents : {false, true})
      for (const double dropout : {0.0, 0.3}) {
        const Case c = make(shape, dropout, documents);
        const Result wanted = attend(c);
        const auto got = run([&] {
          const View out = put(Values(wanted.out.size())), lse = room(c.rows() * shape.heads, wide(type()));
          attention_forward(stream(), out, lse, put(c.q), put(c.k), put(c.v), shape, rows_of(c), c.random, dropout,
                            false);
          return std::vector<View>{out, lse};
        });
        expect_close(got[0], wanted.out, type(), forward_bound(type()), 1);
        expect_close(got[1], wanted.lse, wide(type()), 100, 1);
      }
}

TEST_P(Attention, MergedBlocksOfKeysAreOneCall) {
  const AttentionShape shape{2, 20, 20, 2, 1, 8, 16, 8, 16};
  for (const bool documents : {false, true})
    for (const int64_t cut : {1, 7, 19}) {
      const Case whole = make(shape, 0.2, documents);
      const Result wanted = attend(whole);
      Case parts[2] = {whole, whole};
      for (int side = 0; side < 2; ++side) {
        Case& part = parts[side];
        part.shape.keys = side == 0 ? cut : shape.keys - cut;
        part.k.clear(), part.v.clear(), part.k_order.clear(), part.k_documents.clear();
        for (int64_t s = 0; s < shape.sequences; ++s)
          for (int64_t j = side == 0 ? 0 : cut; j < (side == 0 ? cut : shape.keys); ++j) {
            const auto row = static_cast<size_t>(s * shape.keys + j);
            part.k_order.push_back(whole.k_order[row]);
            part.k_documents.push_back(whole.k_documents[row]);
            for (size_t i = 0; i < 8; ++i) {
              part.k.push_back(whole.k[row * 8 + i]);
              part.v.push_back(whole.v[row * 8 + i]);
            }
          }
      }
      for (const int first : {0, 1}) {
        const auto got = run([&] {
          const View out = room(whole.rows() * shape.out_stride), lse = room(whole.rows() * shape.heads, wide(type()));
          for (const int side : {first, 1 - first}) {
            const Case& part = parts[side];
            attention_forward(stream(), out, lse, put(part.q), put(part.k), put(part.v), part.shape, rows_of(part),
                              part.random, part.dropout, side != first);
          }
          return std::vector<View>{out, lse};
        });
        expect_close(got[0], wanted.out, type(), 2 * forward_bound(type()), 1);
        expect_close(got[1], wanted.lse, wide(type()), 100, 1);
      }
    }
}

TEST_P(Attention, BackwardIsTheSlope) {
  const AttentionShape shapes[] = {{1, 1, 1, 1, 1, 2, 2, 2, 2},
                                   {2, 6, 6, 2, 1, 4, 8, 4, 8},
                                   {1, 5, 9, 4, 2, 2, 10, 5, 9},
                                   {1, 9, 5, 2, 2, 4, 8, 8, 8}};
  for (const AttentionShape& shape : shapes)
    for (const bool documents : {false, true})
      for (const double dropout : {0.0, 0.3}) {
        Case c = make(shape, dropout, documents);
        const Result forward = attend(c);
        const Values g = normal(c.rows() * shape.out_stride);
        const auto loss = [&] {
          const Result r = attend(c);
          double sum = 0;
          for (size_t i = 0; i < r.out.size(); ++i)
            if (static_cast<int64_t>(i) % shape.out_stride < shape.heads * shape.head_width) sum += r.out[i] * g[i];
          return sum;
        };
        const auto slopes = [&](Values& of) {
          Values result;
          for (double& at : of) result.push_back(slope(at, 1e-5, loss));
          return result;
        };
        Values wanted[3] = {slopes(c.q), slopes(c.k), slopes(c.v)};
        for (const bool add : {false, true}) {
          const auto got = run([&] {
            const double before = add ? 0.5 : 0;
            View grads[3];
            for (int i = 0; i < 3; ++i) grads[i] = put(Values(wanted[i].size(), before));
            const View out = put(forward.out), lse = put(forward.lse, wide(type()));
            const View delta = room(c.rows() * shape.heads, wide(type()));
            const View out_grad = put(g), q = put(c.q), k = put(c.k), v = put(c.v);
            attention_delta(stream(), delta, out_grad, out, shape);
            attention_backward(stream(), {grads[0], add}, {grads[1], add}, {grads[2], add}, out_grad, q, k, v, lse,
                               delta, shape, rows_of(c), c.random, dropout);
            return std::vector<View>{grads[0], grads[1], grads[2]};
          });
          for (int i = 0; i < 3; ++i) {
            Values sum = wanted[i];
            const int64_t stride = i == 0 ? shape.q_stride : shape.kv_stride;
            const int64_t used = (i == 0 ? shape.heads : shape.kv_heads) * shape.head_width;
            for (size_t e = 0; e < sum.size(); ++e)
              sum[e] += add || static_cast<int64_t>(e) % stride >= used ? (add ? 0.5 : 0) : 0;
            expect_close(got[static_cast<size_t>(i)], sum, type(),
                         type() == Dtype::f64   ? 1e-8 / roundoff(Dtype::f64)
                         : type() == Dtype::f32 ? 400
                                                : 4,
                         1);
          }
        }
      }
}

}  // namespace
}  // namespace train::test
