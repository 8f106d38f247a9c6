// SPDX-License-Identifier: MIT
//
// The arithmetic of reductions by itself: half types against exact values, averages as NCCL rounds them, NaNs,
// wrap-around, and results laid over an input.

#include "reference/nccl/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "reference/nccl/half.h"

namespace lockstep::nccl {
namespace {

template <class T>
std::vector<T> reduced(ncclDataType_t dtype, ncclRedOp_t op, const std::vector<std::vector<T>>& inputs) {
  const int n = static_cast<int>(inputs.size());
  Reduction how{dtype, static_cast<Arithmetic>(op), n};
  uint64_t scale = 0;
  if (op == ncclAvg) {
    how.arithmetic = is_integer(dtype) ? Arithmetic::divided_sum : Arithmetic::scaled_sum;
    scale = reciprocal_bits(dtype, n);
  }
  std::vector<Input> pointers;
  for (const auto& input : inputs) pointers.push_back({reinterpret_cast<const std::byte*>(input.data()), scale});
  std::vector<T> out(inputs[0].size());
  reduce(how, reinterpret_cast<std::byte*>(out.data()), pointers, out.size());
  return out;
}

// A half's exact value by its definition.
double exact(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

template <class Half16>
void check_all_values(int exponent_bits, int fraction_bits) {
  for (uint32_t u = 0; u < 65536; ++u) {
    const auto bits = static_cast<uint16_t>(u);
    const double want = exact(bits, exponent_bits, fraction_bits);
    const float got = Half16{bits}.to_float();
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << u;
      EXPECT_TRUE(std::isnan(Half16::from_float(got).to_float())) << u;
      continue;
    }
    ASSERT_EQ(want, got) << u;
    ASSERT_EQ(std::signbit(want), std::signbit(got)) << u;
    ASSERT_EQ(bits, Half16::from_float(got).bits) << u;
  }
}

// Between two neighbours: to the nearer one, and from the middle to the even one.
template <class Half16>
void check_rounding(uint16_t largest) {
  for (uint16_t low = 0; low < largest; ++low) {
    const float a = Half16{low}.to_float();
    const float b = Half16{static_cast<uint16_t>(low + 1)}.to_float();
    const float middle = a + (b - a) / 2;  // exact: float has the bits
    ASSERT_EQ(low % 2 == 0 ? low : low + 1, Half16::from_float(middle).bits) << low;
    ASSERT_EQ(low, Half16::from_float(std::nextafter(middle, a)).bits) << low;
    ASSERT_EQ(low + 1, Half16::from_float(std::nextafter(middle, b)).bits) << low;
    ASSERT_EQ(0x8000 | low, Half16::from_float(-std::nextafter(middle, a)).bits) << low;
  }
}

TEST(Half, HasItsExactValues) { check_all_values<Half>(5, 10); }
TEST(Half, RoundsToNearestEven) { check_rounding<Half>(0x7bff); }
TEST(Half, OverflowsToInfinity) {
  EXPECT_EQ(0x7bff, Half::from_float(65519.996f).bits);
  EXPECT_EQ(0x7c00, Half::from_float(65520.0f).bits);
  EXPECT_EQ(0xfc00, Half::from_float(-INFINITY).bits);
}
TEST(Bfloat16, HasItsExactValues) { check_all_values<Bfloat16>(8, 7); }
TEST(Bfloat16, RoundsToNearestEven) { check_rounding<Bfloat16>(0x7f7f); }

TEST(Reduce, RoundsHalvesAfterEveryStep) {
  // 2048 + 1 is not an fp16 number: every step falls back to 2048, where a wide sum would reach 2052.
  const uint16_t big = Half::from_float(2048).bits;
  const uint16_t one = Half::from_float(1).bits;
  const std::vector<std::vector<uint16_t>> inputs{{big}, {one}, {one}, {one}, {one}};
  EXPECT_EQ(big, reduced(ncclFloat16, ncclSum, inputs)[0]);
}

TEST(Reduce, AveragesFloatsByTheRoundedReciprocal) {
  const float x = 1e8f;
  const float y = 3.0f;
  const float z = 7.0f;
  const auto third = static_cast<float>(1.0 / 3);
  EXPECT_EQ(x * third + y * third + z * third, reduced<float>(ncclFloat32, ncclAvg, {{x}, {y}, {z}})[0]);
}
TEST(Reduce, AveragesIntegersTowardZeroAfterWrapping) {
  EXPECT_EQ(-1, reduced<int32_t>(ncclInt32, ncclAvg, {{-2}, {-1}, {-2}})[0]);
  EXPECT_EQ(-2, (reduced<int8_t>(ncclInt8, ncclAvg, {{100}, {100}, {50}})[0]));  // 250 wraps to -6
  EXPECT_EQ(83, (reduced<uint8_t>(ncclUint8, ncclAvg, {{100}, {100}, {50}})[0]));
}
TEST(Reduce, WrapsIntegers) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(std::numeric_limits<int64_t>::min(), reduced<int64_t>(ncclInt64, ncclSum, {{most}, {1}})[0]);
  EXPECT_EQ(-2, reduced<int64_t>(ncclInt64, ncclProd, {{most}, {2}})[0]);
  EXPECT_EQ(1, reduced<int32_t>(ncclInt32, ncclProd, {{-1}, {-1}})[0]);
}
TEST(Reduce, PrefersNumbersToNaN) {
  const double nan = std::nan("");
  for (const ncclRedOp_t op : {ncclMax, ncclMin}) {
    EXPECT_EQ(3.0, reduced<double>(ncclFloat64, op, {{nan}, {3.0}})[0]);
    EXPECT_EQ(3.0, reduced<double>(ncclFloat64, op, {{3.0}, {nan}})[0]);
    EXPECT_TRUE(std::isnan(reduced<double>(ncclFloat64, op, {{nan}, {nan}})[0]));
  }
  EXPECT_TRUE(std::isnan(reduced<double>(ncclFloat64, ncclSum, {{nan}, {1.0}})[0]));
}
TEST(Reduce, ComparesUnsignedAsUnsigned) {
  EXPECT_EQ(200, (reduced<uint8_t>(ncclUint8, ncclMax, {{200}, {100}})[0]));
  EXPECT_EQ(-56, (reduced<int8_t>(ncclInt8, ncclMin, {{-56}, {100}})[0]));
}

// Longer than a block, into each of the inputs in turn.
TEST(Reduce, MayOverwriteAnyInput) {
  constexpr size_t kCount = 10007;
  for (size_t target = 0; target < 4; ++target) {
    std::vector<std::vector<float>> inputs(4, std::vector<float>(kCount));
    for (size_t r = 0; r < 4; ++r)
      for (size_t i = 0; i < kCount; ++i) inputs[r][i] = static_cast<float>(r * kCount + i);
    std::vector<Input> pointers;
    for (const auto& input : inputs) pointers.push_back({reinterpret_cast<const std::byte*>(input.data())});
    reduce({ncclFloat32, Arithmetic::sum, 4}, reinterpret_cast<std::byte*>(inputs[target].data()), pointers, kCount);
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(static_cast<float>(6 * kCount + 4 * i), inputs[target][i]) << i;
  }
}

}  // namespace
}  // namespace lockstep::nccl
