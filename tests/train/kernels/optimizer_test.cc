// SPDX-License-Identifier: MIT

#include <cmath>

#include "tests/train/kernels/harness.h"

namespace train::test {
namespace {

using Optimizer = KernelTest;
LOCKSTEP_ALL_TYPES(Optimizer);

const int64_t kSizes[] = {0, 1, 33, 40001};

TEST_P(Optimizer, AdamWIsTheFormula) {
  for (const int64_t n : kSizes) {
    Values p = normal(n), m(static_cast<size_t>(n)), v(static_cast<size_t>(n));
    const Values start = p, g1 = normal(n), g2 = normal(n);
    const double rate = 0.01, beta1 = 0.9, beta2 = 0.95, eps = 1e-4, decay = 0.1, clip = 0.5;
    const auto kernel = [&] {
      const View master = put(start, wide(type())), first = put(Values(p.size()), wide(type())),
                 second = put(Values(p.size()), wide(type()));
      const View value = type() == wide(type()) ? master : room(n);
      adamw(stream(), value, master, first, second, put(g1, wide(type())), clip, {rate, beta1, beta2, eps, decay, 1});
      adamw(stream(), value, master, first, second, put(g2, wide(type())), clip, {rate, beta1, beta2, eps, decay, 2});
      return std::vector<View>{value, master, first, second};
    };
    const auto got = run(kernel);
    for (int step = 1; step <= 2; ++step)
      for (size_t i = 0; i < p.size(); ++i) {
        const double g = clip * (step == 1 ? g1 : g2)[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        const double m_hat = m[i] / (1 - std::pow(beta1, step)), v_hat = v[i] / (1 - std::pow(beta2, step));
        p[i] -= rate * (m_hat / (std::sqrt(v_hat) + eps) + decay * p[i]);
      }
    expect_close(got[0], p, type(), type() == Dtype::bf16 ? 1.01 : 12);
    expect_close(got[1], p, wide(type()), 12);
    expect_close(got[2], m, wide(type()), 12);
    expect_close(got[3], v, wide(type()), 12);
    if (type() == Dtype::bf16) {
      EXPECT_EQ(got[0], get(put(got[1])));  // rounded from the master
    }
  }
}

TEST_P(Optimizer, SgdIsTheFormula) {
  for (const int64_t n : kSizes) {
    Values p = normal(n), m(static_cast<size_t>(n));
    const Values start = p, g = normal(n);
    const auto got = run([&] {
      const View master = put(start, wide(type())), first = put(Values(p.size()), wide(type()));
      const View value = type() == wide(type()) ? master : room(n);
      for (int step = 0; step < 3; ++step)
        sgd(stream(), value, master, first, put(g, wide(type())), 0.5, {0.1, 0.9, 0.01});
      return std::vector<View>{value, master, first};
    });
    for (int step = 0; step < 3; ++step)
      for (size_t i = 0; i < p.size(); ++i) {
        m[i] = 0.9 * m[i] + 0.5 * g[i] + 0.01 * p[i];
        p[i] -= 0.1 * m[i];
      }
    expect_close(got[0], p, type(), type() == Dtype::bf16 ? 1.01 : 20);
    expect_close(got[1], p, wide(type()), 20);
    expect_close(got[2], m, wide(type()), 20);
  }
}

// The sum over any spread of the elements, added in any order, rounds to the same double.
TEST_P(Optimizer, SumOfSquaresDoesNotDependOnTheSplit) {
  const int64_t n = 1200001;
  const Values x = normal(n);
  const View values = put(x);
  const auto sum_of = [&](const std::vector<std::pair<int64_t, int64_t>>& parts) {
    const auto got = run([&] {
      const View sum = put({0, 0}, Dtype::f64);
      for (const auto& [begin, end] : parts) add_squares(stream(), sum, values.part(begin, end - begin));
      return std::vector<View>{sum};
    });
    return got[0][0] + got[0][1];
  };
  long double exact = 0;
  for (const double value : x) exact += static_cast<long double>(value) * value;
  const double whole = sum_of({{0, n}});
  EXPECT_NEAR(whole, static_cast<double>(exact), 1e-12 * whole);
  for (const int64_t cut : {int64_t{0}, int64_t{1}, int64_t{777777}, n}) {
    EXPECT_EQ(sum_of({{0, cut}, {cut, n}}), whole);
    EXPECT_EQ(sum_of({{cut, n}, {0, cut}}), whole);
  }
  EXPECT_EQ(sum_of({{n / 2, n}, {n / 4, n / 2}, {0, n / 8}, {n / 8, n / 4}}), whole);
}

// 1 + 2^-80: what a double-double holds and a double does not.
TEST(SumOfSquares, KeepsWhatADoubleLoses) {
  Memory memory(0);
  Stream stream;
  const View values = memory.allocate(Purpose::workspace, Dtype::f64, 3),
             sum = memory.allocate(Purpose::workspace, Dtype::f64, 2);
  fill(stream.get(), values.part(0, 1), 1);
  fill(stream.get(), values.part(1, 1), 0x1p-40);
  fill(stream.get(), values.part(2, 1), 1 + 0x1p-30);  // its square: 1 + 2^-29 + 2^-60
  add_squares(stream.get(), sum, values);
  double result[2];
  check(cudaMemcpyAsync(result, sum.data, sizeof(result), cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
  stream.synchronize();
  EXPECT_EQ(result[0], 2 + 0x1p-29);
  EXPECT_EQ(result[1], 0x1p-60 + 0x1p-80);
}

}  // namespace
}  // namespace train::test
