// SPDX-License-Identifier: MIT

#include "tests/train/kernels/harness.h"

namespace train::test {
namespace {

using Dense = KernelTest;
LOCKSTEP_ALL_TYPES(Dense);

struct Sizes {
  int64_t rows, inputs, outputs;
};
// Zero, one, odd, and beyond one tile in every direction.
const Sizes kSizes[] = {{0, 3, 5},   {1, 1, 1},    {3, 7, 5},      {17, 1, 33}, {5, 0, 4},
                        {1, 300, 2}, {65, 31, 64}, {259, 37, 261}, {7, 513, 9}};

Values product(const Values& a, const Values& b, int64_t m, int64_t n, int64_t k, bool turn_a, bool turn_b) {
  Values c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        c[static_cast<size_t>(i * n + j)] += a[static_cast<size_t>(turn_a ? l * m + i : i * k + l)] *
                                             b[static_cast<size_t>(turn_b ? j * k + l : l * n + j)];
  return c;
}

double bound(Dtype dtype, int64_t terms) {
  const auto n = static_cast<double>(terms);
  return dtype == Dtype::bf16 ? 1.5 : 4 + 2 * n;
}

TEST_P(Dense, ForwardIsTheProductAndTheBias) {
  for (const auto& [rows, inputs, outputs] : kSizes)
    for (const bool biased : {false, true}) {
      const Values x = normal(rows * inputs), w = normal(outputs * inputs), b = normal(outputs);
      Values wanted = product(x, w, rows, outputs, inputs, false, true);
      if (biased)
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += b[i % static_cast<size_t>(outputs)];
      const int64_t r = rows, in = inputs, out = outputs;
      const Values got = run_one([&] {
        const View y = room(r * out);
        linear_forward(stream(), y, put(x), put(w), biased ? put(b) : View{}, r, in, out);
        return y;
      });
      expect_close(got, wanted, type(), bound(type(), inputs + 1), 1);
    }
}

TEST_P(Dense, BackwardInputIsTheProductWithTheWeight) {
  for (const auto& [rows, inputs, outputs] : kSizes)
    for (const bool add : {false, true}) {
      const Values g = normal(rows * outputs), w = normal(outputs * inputs), before = normal(rows * inputs);
      Values wanted = product(g, w, rows, inputs, outputs, false, false);
      if (add)
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
      const int64_t r = rows, in = inputs, out = outputs;
      const Values got = run_one([&] {
        const View x_grad = add ? put(before) : room(r * in);
        linear_backward_input(stream(), {x_grad, add}, put(g), put(w), r, in, out);
        return x_grad;
      });
      expect_close(got, wanted, type(), bound(type(), outputs + 1), 1);
    }
}

TEST_P(Dense, BackwardWeightIsTheProductWithTheInput) {
  for (const auto& [rows, inputs, outputs] : kSizes)
    for (const bool add : {false, true}) {
      const Values g = normal(rows * outputs), x = normal(rows * inputs), before = normal(outputs * inputs);
      Values wanted = product(g, x, outputs, inputs, rows, true, false);
      if (add)
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
      const int64_t r = rows, in = inputs, out = outputs;
      const Values got = run_one([&] {
        const View w_grad = add ? put(before, wide(type())) : room(out * in, wide(type()));
        linear_backward_weight(stream(), {w_grad, add}, put(g), put(x), r, in, out);
        return w_grad;
      });
      expect_close(got, wanted, wide(type()), 4 + 2 * static_cast<double>(rows + 1), 1);
    }
}

// A further use adds what it would have written by itself, so that the order of uses is the order of additions.
TEST_P(Dense, WhatIsAddedIsComputedApart) {
  const int64_t rows = 600, inputs = 40, outputs = 300;
  const Values g = normal(rows * outputs), x = normal(rows * inputs), before = normal(outputs * inputs);
  const View apart = room(outputs * inputs, wide(type())), together = put(before, wide(type()));
  const View sum = room(outputs * inputs, wide(type()));
  linear_backward_weight(stream(), {apart, false}, put(g), put(x), rows, inputs, outputs);
  linear_backward_weight(stream(), {together, true}, put(g), put(x), rows, inputs, outputs);
  add(stream(), sum, put(before, wide(type())), apart);
  check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  EXPECT_EQ(get(together), get(sum));
}

TEST_P(Dense, BiasGradientIsTheSumOverRows) {
  for (const auto& [rows, inputs, outputs] : kSizes)
    for (const bool add : {false, true}) {
      const Values g = normal(rows * outputs), before = normal(outputs);
      Values wanted(static_cast<size_t>(outputs));
      if (add) wanted = before;
      for (size_t i = 0; i < g.size(); ++i) wanted[i % static_cast<size_t>(outputs)] += g[i];
      const int64_t r = rows, out = outputs;
      const Values got = run_one([&] {
        const View b_grad = add ? put(before, wide(type())) : room(out, wide(type()));
        bias_backward(stream(), {b_grad, add}, put(g), r, out);
        return b_grad;
      });
      expect_close(got, wanted, wide(type()), 4 + 2 * static_cast<double>(rows + 1), 1);
    }
}

}  // namespace
}  // namespace train::test
