// SPDX-License-Identifier: MIT
//
// The two 16-bit floating-point types, as far as reductions need them: to float, and back with rounding to nearest
// even. (A sum or product of two halves computed in float and rounded once is the correctly rounded one: float has more
// than twice their bits.)

#pragma once

#include <bit>
#include <cstdint>

namespace lockstep::nccl {

struct Bfloat16 {
  uint16_t bits;

  float to_float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  static Bfloat16 from_float(float x) {
    uint32_t u = std::bit_cast<uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};  // quiet NaN
    u += 0x7fffu + ((u >> 16) & 1u);
    return {static_cast<uint16_t>(u >> 16)};
  }
};

struct Half {
  uint16_t bits;

  float to_float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t fraction = bits & 0x3ffu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float tiny = static_cast<float>(fraction) * 0x1p-24f;  // subnormal: exact
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(tiny));
  }
  static Half from_float(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};   // NaN
    if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds beyond 65504
    if (magnitude < 0x38800000u) {                                   // subnormal: let float addition round
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;  // unit in the last place is 2^-24 here
      return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
  }
};

}  // namespace lockstep::nccl
