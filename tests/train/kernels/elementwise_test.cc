// SPDX-License-Identifier: MIT

#include <cmath>
#include <cstring>
#include <limits>

#include "reference/train/kernels/vector.h"
#include "tests/train/kernels/harness.h"

namespace train::test {
namespace {

using Elementwise = KernelTest;
LOCKSTEP_ALL_TYPES(Elementwise);

const int64_t kSizes[] = {0, 1, 31, 1000, 40001};

// Each element of the result by a function of the elements of two operands.
Values each(const Values& a, const Values& b, const std::function<double(double, double)>& of) {
  Values result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = of(a[i], b[i]);
  return result;
}

TEST_P(Elementwise, FillAndConvert) {
  for (const int64_t n : kSizes) {
    const Values x = normal(n);
    for (const Dtype to : {Dtype::f64, Dtype::f32, Dtype::bf16}) {
      const Values got = run_one([&] {
        const View out = room(n, to);
        convert(stream(), out, put(x));
        return out;
      });
      expect_close(got, x, to, 1);
      EXPECT_EQ(got, get(put(got, to)));  // to where it is a number of that type
    }
    EXPECT_EQ(run_one([&] {
                const View out = room(n);
                fill(stream(), out, 0.5);
                return out;
              }),
              Values(static_cast<size_t>(n), 0.5));
  }
}

TEST_P(Elementwise, SumsAndProducts) {
  for (const int64_t n : kSizes) {
    const Values a = normal(n), b = normal(n);
    const auto in_place = [&](const std::function<void(View)>& kernel) {
      return run_one([&] {
        const View x = put(a);
        kernel(x);
        return x;
      });
    };
    const Values sum = each(a, b, [](double x, double y) { return x + y; });
    expect_close(in_place([&](View x) { add(stream(), x, x, put(b)); }), sum, type(), 1);
    expect_close(in_place([&](View x) { add(stream(), x, put(b), x); }), sum, type(), 1);
    expect_close(in_place([&](View x) { add_to(stream(), x, put(b), 1); }), sum, type(), 1);
    for (const Dtype term : {Dtype::f64, Dtype::f32})
      expect_close(in_place([&](View x) { add_to(stream(), x, put(b, term), 0.25); }),
                   each(a, b, [](double x, double y) { return x + 0.25 * y; }), type(),
                   type() == Dtype::f64 && term == Dtype::f32 ? 1 + roundoff(Dtype::f32) / roundoff(Dtype::f64) : 1.01);
    expect_close(in_place([&](View x) { scale(stream(), x, 1 / 3.0); }),
                 each(a, a, [](double x, double) { return x / 3; }), type(), 2.1);
    expect_close(in_place([&](View x) { divide(stream(), x, 12345678901.0); }),
                 each(a, a, [](double x, double) { return x / 12345678901.0; }), type(), 1.01);
  }
}

TEST_P(Elementwise, AddBias) {
  for (const auto& [rows, outputs] : {std::pair<int64_t, int64_t>{0, 3}, {1, 1}, {70, 33}, {129, 64}}) {
    const int64_t n = rows, w = outputs;
    const Values y = normal(n * w), b = normal(w);
    Values wanted = y;
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += b[i % static_cast<size_t>(w)];
    expect_close(run_one([&] {
                   const View out = put(y);
                   add_bias(stream(), out, put(b), n, w);
                   return out;
                 }),
                 wanted, type(), 1);
  }
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

TEST_P(Elementwise, GeluAndItsSlope) {
  for (const int64_t n : kSizes) {
    Values x = normal(n, 3);
    if (n > 30) x[0] = 1e30, x[1] = -1e30, x[2] = 0, x[3] = 40, x[4] = -40;
    if (type() != Dtype::f64) x = get(put(x));
    const Values g = normal(n);
    const double factor = type() == Dtype::bf16 ? 1.1 : 8;
    const Values got = run_one([&] {
      const View out = room(n);
      gelu_forward(stream(), out, put(x));
      return out;
    });
    Values wanted = each(x, x, [](double at, double) { return gelu(at); });
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_LE(std::abs(got[i] - wanted[i]), factor * roundoff(type()) * std::max(1.0, std::abs(wanted[i]))) << x[i];
    wanted = each(x, g, [](double at, double grad) {
      const double h = 1e-5;
      return grad * (std::abs(at) > 30 ? (at > 0 ? 1 : 0) : (gelu(at + h) - gelu(at - h)) / (2 * h));
    });
    const auto slope = [&](bool in_place) {
      return run_one([&] {
        const View out_grad = put(g), in_grad = in_place ? out_grad : room(n);
        gelu_backward(stream(), in_grad, out_grad, put(x));
        return in_grad;
      });
    };
    expect_close(slope(false), wanted, type(), type() == Dtype::f64 ? 1e-9 / roundoff(Dtype::f64) : 4 * factor, 1);
    EXPECT_EQ(slope(false), slope(true));
  }
}

// Distance in units of the last place, of the place the right answer has.
double ulps(float got, double wanted) {
  if (std::isinf(got) && wanted > std::numeric_limits<float>::max()) return 0;
  int exponent;
  std::frexp(wanted, &exponent);
  return std::abs(got - wanted) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(Exponential, IsRightWithinAUlp) {
  double worst = 0;
  for (int i = -1060000; i <= 900000; ++i) {
    const float x = static_cast<float>(i) * 1.0e-4F;
    worst = std::max(worst, ulps(exp_of(x), std::exp(static_cast<double>(x))));
  }
  for (float x = 1; x > 1e-30F; x *= 0.97F)
    for (const float at : {x, -x}) worst = std::max(worst, ulps(exp_of(at), std::exp(static_cast<double>(at))));
  EXPECT_LE(worst, 1.1);
  EXPECT_EQ(exp_of(0.0F), 1.0F);
  EXPECT_EQ(exp_of(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_EQ(exp_of(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(exp_of(1e30F), std::numeric_limits<float>::infinity());
  EXPECT_EQ(exp_of(-1e30F), 0.0F);
  EXPECT_TRUE(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Bf16, IsRoundedOnceToNearestEven) {
  const auto bits = [](auto value) { return to_bf16(value).bits; };
  EXPECT_EQ(bits(1.0F), 0x3f80);
  EXPECT_EQ(bits(0x1.01p0F), 0x3f80);  // halfway: to the even one below
  EXPECT_EQ(bits(0x1.03p0F), 0x3f82);  // halfway: to the even one above
  EXPECT_EQ(bits(0x1.010002p0F), 0x3f81);
  EXPECT_EQ(bits(0x1.0100000001p0), 0x3f81);  // a float in between would have rounded to halfway
  EXPECT_EQ(bits(0x1.0300000001p0), 0x3f82);
  EXPECT_EQ(bits(0x1.02ffffffffp0), 0x3f81);
  EXPECT_EQ(bits(-0x1.0100000001p0), 0xbf81);
  EXPECT_EQ(bits(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bits(std::numeric_limits<double>::infinity()), 0x7f80);
  EXPECT_EQ(bits(1e300), 0x7f80);
  EXPECT_EQ(bits(0.0), 0);
  EXPECT_TRUE(std::isnan(load(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(load(to_bf16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(load(to_bf16(std::numeric_limits<double>::quiet_NaN()))));
}

}  // namespace
}  // namespace train::test
