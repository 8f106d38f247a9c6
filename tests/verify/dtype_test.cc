// SPDX-License-Identifier: MIT

#include "verify/dump/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace lockstep::dump {
namespace {

template <class T>
double value_of(Dtype dtype, T stored) {
  char bytes[sizeof stored + 1];
  std::memcpy(bytes + 1, &stored, sizeof stored);  // at an odd address
  double value = 0;
  to_double(dtype, bytes + 1, 1, &value);
  return value;
}

template <class T>
uint64_t distance(Dtype dtype, T a, T b) {
  return ulp_distance(dtype, &a, &b);
}

TEST(Dtype, NamesGoBothWays) {
  for (const Dtype dtype : kDtypes) EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
  EXPECT_EQ(dtype_named("F8_E4M3"), std::nullopt);
  EXPECT_EQ(dtype_named(""), std::nullopt);
}

TEST(Dtype, HalvesKeepEachOfTheirValues) {
  EXPECT_EQ(value_of<uint16_t>(Dtype::f16, 0x3c00), 1.0);
  EXPECT_EQ(value_of<uint16_t>(Dtype::f16, 0xc000), -2.0);
  EXPECT_EQ(value_of<uint16_t>(Dtype::f16, 0x0001), 0x1p-24);  // the smallest
  EXPECT_EQ(value_of<uint16_t>(Dtype::f16, 0x03ff), 1023 * 0x1p-24);
  EXPECT_EQ(value_of<uint16_t>(Dtype::f16, 0x7bff), 65504.0);
  EXPECT_EQ(value_of<uint16_t>(Dtype::f16, 0x7c00), std::numeric_limits<double>::infinity());
  EXPECT_EQ(value_of<uint16_t>(Dtype::f16, 0xfc00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(value_of<uint16_t>(Dtype::f16, 0x7e00)));
  EXPECT_TRUE(std::signbit(value_of<uint16_t>(Dtype::f16, 0x8000)));
  EXPECT_EQ(value_of<uint16_t>(Dtype::bf16, 0x3f80), 1.0);
  EXPECT_EQ(value_of<uint16_t>(Dtype::bf16, 0x4049), 3.140625);
  EXPECT_TRUE(std::isnan(value_of<uint16_t>(Dtype::bf16, 0x7fc0)));
}

TEST(Dtype, TheOthersToo) {
  EXPECT_EQ(value_of(Dtype::f64, 0.1), 0.1);
  EXPECT_EQ(value_of(Dtype::f32, 0.1F), static_cast<double>(0.1F));
  EXPECT_EQ(value_of<int64_t>(Dtype::i64, -5), -5);
  EXPECT_EQ(value_of<int32_t>(Dtype::i32, -5), -5);
  EXPECT_EQ(value_of<int8_t>(Dtype::i8, -5), -5);
  EXPECT_EQ(value_of<uint8_t>(Dtype::u8, 251), 251);
  EXPECT_EQ(value_of<uint8_t>(Dtype::boolean, 1), 1);
}

TEST(Dtype, UlpsCountTheValuesBetween) {
  EXPECT_EQ(distance(Dtype::f32, 1.0F, 1.0F), 0u);
  EXPECT_EQ(distance(Dtype::f32, 1.0F, std::nextafter(1.0F, 2.0F)), 1u);
  EXPECT_EQ(distance(Dtype::f32, 0.0F, -0.0F), 0u);
  EXPECT_EQ(distance(Dtype::f32, std::numeric_limits<float>::denorm_min(), -std::numeric_limits<float>::denorm_min()),
            2u);
  EXPECT_EQ(distance(Dtype::f64, 1.0, 2.0), uint64_t{1} << 52);
  EXPECT_EQ(distance<uint16_t>(Dtype::bf16, 0x3f80, 0x3f7e), 2u);
  EXPECT_EQ(distance(Dtype::f64, std::nan(""), 1.0), UINT64_MAX);
  EXPECT_EQ(distance<uint16_t>(Dtype::f16, 0x7e00, 0x7e00), UINT64_MAX);
}

}  // namespace
}  // namespace lockstep::dump
