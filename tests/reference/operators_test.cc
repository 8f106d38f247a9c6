// SPDX-License-Identifier: MIT
//
// Operators made at run time, averages, and the 8-bit types, through the public interface.

#include <cstring>
#include <string>

#include "reference/nccl/float8.h"
#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

class Operators : public ::testing::TestWithParam<As> {};

// Each rank has a scalar of its own, which its input is multiplied by; large and small messages go different ways.
TEST_P(Operators, MultiplyEveryRanksInputByItsScalar) {
  run_job(GetParam(), 3, [](Rank& me) {
    for (const size_t count : {size_t{5}, size_t{40000}}) {
      DeviceBuffer<float> data(count);
      for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 7) + static_cast<float>(me.rank);
      float scalar = static_cast<float>(me.rank + 1);
      ncclRedOp_t op{};
      NCCL_OK(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate, me.comm));
      scalar = 1000;  // a host scalar was copied
      NCCL_OK(ncclAllReduce(data.data, data.data, count, ncclFloat, op, me.comm, me.stream));
      NCCL_OK(ncclRedOpDestroy(op, me.comm));  // at once; the call has what it needs
      me.sync();
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(static_cast<float>(6 * (i % 7)) + 8.0f, data[i]) << i;
    }
  });
}

TEST_P(Operators, ReadADeviceScalarWhenTheyRun) {
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<int32_t> data(3);
    DeviceBuffer<int32_t> scalar(1);
    scalar[0] = 1;
    for (size_t i = 0; i < 3; ++i) data[i] = 5;
    ncclRedOp_t op{};
    NCCL_OK(ncclRedOpCreatePreMulSum(&op, scalar.data, ncclInt32, ncclScalarDevice, me.comm));
    CUDA_OK(cudaLaunchHostFunc(
        me.stream,
        [](void* at) {
          std::this_thread::sleep_for(milliseconds(20));
          *static_cast<int32_t*>(at) = 3;
        },
        scalar.data));
    NCCL_OK(ncclAllReduce(data.data, data.data, 3, ncclInt32, op, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(30, data[2]);
    NCCL_OK(ncclRedOpDestroy(op, me.comm));
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Operators, ::testing::Values(As::processes, As::threads),
                         [](const auto& each) { return std::string(name_of(each.param)); });

TEST(OperatorNumbers, AreKnownToTheirCommunicatorOnly) {
  run_job(As::processes, 1, [](Rank& me) {
    DeviceBuffer<float> data(4);
    float scalar = 2;
    ncclRedOp_t first{};
    ncclRedOp_t second{};
    NCCL_OK(ncclRedOpCreatePreMulSum(&first, &scalar, ncclFloat, ncclScalarHostImmediate, me.comm));
    scalar = 4;
    NCCL_OK(ncclRedOpCreatePreMulSum(&second, &scalar, ncclFloat, ncclScalarHostImmediate, me.comm));
    EXPECT_NE(first, second);
    EXPECT_GE(static_cast<int>(first), static_cast<int>(ncclNumOps));
    const auto expect = [&](const char* text, ncclResult_t result) {
      EXPECT_EQ(ncclInvalidArgument, result);
      EXPECT_STREQ(text, ncclGetLastError(me.comm));
    };
    ncclComm_t other = nullptr;
    NCCL_OK(ncclCommSplit(me.comm, 0, 0, &other, nullptr));
    expect("ncclRedOpDestroy : operator unknown to this communicator.", ncclRedOpDestroy(first, other));
    const std::string unknown =
        "AllReduce : reduction operation " + std::to_string(first) + " unknown to this communicator";
    expect(unknown.c_str(), ncclAllReduce(data.data, data.data, 4, ncclFloat, first, other, me.stream));
    expect("Data type supplied to user-created ncclRedOp_t does not match type given to reduction operation",
           ncclAllReduce(data.data, data.data, 4, ncclInt, first, me.comm, me.stream));
    NCCL_OK(ncclAllReduce(data.data, data.data, 0, ncclInt, first, me.comm, me.stream));  // count 0: not looked at
    // One rank: the input is multiplied all the same.
    data[3] = 5;
    NCCL_OK(ncclAllReduce(data.data, data.data, 4, ncclFloat, second, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(20, data[3]);
    NCCL_OK(ncclRedOpDestroy(first, me.comm));
    expect("ncclRedOpDestroy : operator unknown to this communicator.", ncclRedOpDestroy(first, me.comm));
    expect("ncclRedOpDestroy : operator is a NCCL builtin.", ncclRedOpDestroy(ncclAvg, me.comm));
    expect("ncclRedOpDestroy :  operator is garbage.", ncclRedOpDestroy(static_cast<ncclRedOp_t>(-4), me.comm));
    expect("ncclRedOpDestroy : invalid communicator passed.", ncclRedOpDestroy(second, nullptr));
    NCCL_OK(ncclCommDestroy(other));
  });
}

// 8-bit floats by their definition, beside the code's.
double exact(uint8_t bits, int exponent_bits) {
  const int fraction_bits = 7 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7f) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (exponent_bits == 4 && (bits & 0x7f) == 0x7f) return NAN;
  if (exponent_bits == 5 && exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

template <class T>
class Float8Values : public ::testing::Test {};
using Both = ::testing::Types<nccl::Float8E4m3, nccl::Float8E5m2>;
TYPED_TEST_SUITE(Float8Values, Both);

TYPED_TEST(Float8Values, AreExactAndRoundToNearestEven) {
  constexpr int kBits = TypeParam::kFractionBits == 3 ? 4 : 5;
  for (int b = 0; b < 256; ++b) {
    const auto bits = static_cast<uint8_t>(b);
    const double want = exact(bits, kBits);
    const float got = TypeParam{bits}.to_float();
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << b;
      EXPECT_TRUE(std::isnan(TypeParam::from_float(got).to_float())) << b;
      continue;
    }
    ASSERT_EQ(want, got) << b;
    if (!std::isinf(want)) {
      ASSERT_EQ(bits, TypeParam::nearest(got).bits) << b;
    }
  }
  for (uint8_t low = 0; low < TypeParam::kLargest; ++low) {
    const float a = TypeParam{low}.to_float();
    const float b = TypeParam{static_cast<uint8_t>(low + 1)}.to_float();
    const float middle = a + (b - a) / 2;
    ASSERT_EQ(low % 2 == 0 ? low : low + 1, TypeParam::nearest(middle).bits) << int{low};
    ASSERT_EQ(low, TypeParam::nearest(std::nextafter(middle, a)).bits) << int{low};
    ASSERT_EQ(low + 1, TypeParam::nearest(std::nextafter(middle, b)).bits) << int{low};
  }
  EXPECT_EQ(+TypeParam::kLargest, TypeParam::from_float(1e6f).bits);  // not infinity
  EXPECT_EQ(0x80 | TypeParam::kLargest, TypeParam::from_float(-INFINITY).bits);
}

// Rounded at every step: the sum of many small ones never gets off the ground beside a large one.
TEST(Float8, IsRoundedAtEveryHop) {
  run_job(As::processes, 4, [](Rank& me) {
    DeviceBuffer<uint8_t> data(3000);
    const uint8_t mine =
        nccl::Float8E4m3::nearest(me.rank == 0 ? 256.0f : 8.0f).bits;  // neighbours of 256 are 32 apart
    for (size_t i = 0; i < data.count; ++i) data[i] = mine;
    NCCL_OK(ncclAllReduce(data.data, data.data, data.count, ncclFloat8e4m3, ncclSum, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(256.0f, nccl::Float8E4m3{data[2999]}.to_float());
    for (size_t i = 0; i < data.count; ++i) data[i] = nccl::Float8E5m2::nearest(4.0f).bits;
    NCCL_OK(ncclAllReduce(data.data, data.data, data.count, ncclFloat8e5m2, ncclAvg, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(4.0f, nccl::Float8E5m2{data[0]}.to_float());
  });
}

}  // namespace
}  // namespace lockstep::test
