// SPDX-License-Identifier: MIT

#include <cmath>
#include <numeric>

#include "tests/train/kernels/harness.h"

namespace train::test {
namespace {

using Norm = KernelTest;
LOCKSTEP_ALL_TYPES(Norm);

struct Size {
  int64_t rows, width;
};
const Size kSizes[] = {{0, 4}, {1, 1}, {3, 5}, {70, 16}, {33, 130}, {130, 65}};

struct Statistics {
  Values mean, rstd;
};
Statistics statistics(const Values& x, int64_t rows, int64_t width) {
  Statistics s;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < width; ++c) sum += x[static_cast<size_t>(r * width + c)];
    const double mean = sum / static_cast<double>(width);
    for (int64_t c = 0; c < width; ++c) squares += std::pow(x[static_cast<size_t>(r * width + c)] - mean, 2);
    s.mean.push_back(mean);
    s.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(width) + 1e-5));
  }
  return s;
}
Values normalise(const Values& x, const Values& gain, const Values& bias, int64_t rows, int64_t width) {
  const Statistics s = statistics(x, rows, width);
  Values y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t r = i / static_cast<size_t>(width), c = i % static_cast<size_t>(width);
    y[i] = (x[i] - s.mean[r]) * s.rstd[r] * gain[c] + bias[c];
  }
  return y;
}

TEST_P(Norm, ForwardNormalisesRows) {
  for (const auto& [rows, width] : kSizes) {
    const int64_t n = rows, w = width;
    Values x = normal(n * w);
    const Values gain = normal(w), bias = normal(w);
    const Statistics s = statistics(x, n, w);
    const auto got = run([&] {
      const View y = room(n * w), mean = room(n, wide(type())), rstd = room(n, wide(type()));
      layernorm_forward(stream(), y, mean, rstd, put(x), put(gain), put(bias), n, w);
      return std::vector<View>{y, mean, rstd};
    });
    expect_close(got[0], normalise(x, gain, bias, n, w), type(), 30, 1);
    expect_close(got[1], s.mean, wide(type()), 30, 1);
    expect_close(got[2], s.rstd, wide(type()), 60);
  }
}

TEST_P(Norm, BackwardIsTheSlope) {
  constexpr double kStep = 1e-4;
  for (const auto& [rows, width] : kSizes) {
    const int64_t n = rows, w = width;
    Values x = normal(n * w), gain = normal(w), bias = normal(w);
    const Values g = normal(n * w), before = normal(n * w);
    const Statistics s = statistics(x, n, w);
    const auto loss = [&] {
      const Values y = normalise(x, gain, bias, n, w);
      return std::inner_product(y.begin(), y.end(), g.begin(), 0.0);
    };
    Values x_slope, gain_slope, bias_slope;
    for (int64_t r = 0; n * w <= 1200 && r < n; ++r) {  // no row depends on another
      Values row(x.begin() + r * w, x.begin() + (r + 1) * w);
      const auto loss_of_row = [&] {
        const Values y = normalise(row, gain, bias, 1, w);
        return std::inner_product(y.begin(), y.end(), g.begin() + r * w, 0.0);
      };
      for (double& at : row) x_slope.push_back(slope(at, kStep, loss_of_row));
    }
    for (double& at : gain) gain_slope.push_back(slope(at, kStep, loss));
    for (double& at : bias) bias_slope.push_back(slope(at, kStep, loss));
    for (const bool add : {false, true}) {
      const auto got = run([&] {
        const View mean = put(s.mean, wide(type())), rstd = put(s.rstd, wide(type()));
        const View x_grad = add ? put(before) : room(n * w);
        const View gain_grad = add ? put(Values(static_cast<size_t>(w), 2), wide(type())) : room(w, wide(type()));
        const View bias_grad = add ? put(Values(static_cast<size_t>(w), 3), wide(type())) : room(w, wide(type()));
        layernorm_backward_input(stream(), {x_grad, add}, put(g), put(x), put(gain), mean, rstd, n, w);
        layernorm_backward_weight(stream(), {gain_grad, add}, {bias_grad, add}, put(g), put(x), mean, rstd, n, w);
        return std::vector<View>{x_grad, gain_grad, bias_grad};
      });
      // A slope by differences is good to about 1e-6 of the rows' largest 1 / deviation.
      const double noise = type() == Dtype::f64 ? 1e-6 / roundoff(Dtype::f64) : 1e2;
      if (!x_slope.empty()) {
        Values wanted = x_slope;
        for (size_t i = 0; add && i < wanted.size(); ++i) wanted[i] += before[i];
        expect_close(got[0], wanted, type(), type() == Dtype::bf16 ? 4 : noise, 1);
      }
      Values wanted_gain = gain_slope, wanted_bias = bias_slope;
      for (double& value : wanted_gain) value += add ? 2 : 0;
      for (double& value : wanted_bias) value += add ? 3 : 0;
      expect_close(got[1], wanted_gain, wide(type()), noise, 1);
      expect_close(got[2], wanted_bias, wide(type()), noise, 1);
    }
  }
}

}  // namespace
}  // namespace train::test
