// SPDX-License-Identifier: MIT
//
// The two 8-bit floating-point types. NCCL computes on them in fp16 and rounds back after every step, beyond the
// largest number to that number (not to infinity), so from_float() rounds twice: to fp16, then to 8 bits.

#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "reference/nccl/half.h"

namespace lockstep::nccl {

// e4m3 has no infinities, and NaN only where all seven bits are set; e5m2 is an fp16 cut short.
template <int kExponentBits>
struct Float8 {
  uint8_t bits;

  static constexpr int kFractionBits = 7 - kExponentBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr bool kE4m3 = kExponentBits == 4;
  static constexpr uint8_t kLargest = kE4m3 ? 0x7e : 0x7b;  // 448 and 57344
  static constexpr uint8_t kNaN = kE4m3 ? 0x7f : 0x7e;

  float to_float() const {
    static const std::array<float, 256> values = [] {
      std::array<float, 256> all{};
      for (unsigned i = 0; i < 256; ++i) all[i] = Float8{static_cast<uint8_t>(i)}.computed();
      return all;
    }();
    return values[bits];
  }
  float computed() const {
    const int magnitude = bits & 0x7f;
    const float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
    if (kE4m3 ? magnitude == 0x7f : magnitude > 0x7c) return std::bit_cast<float>(0x7fc00000u);
    if (!kE4m3 && magnitude == 0x7c) return sign * HUGE_VALF;
    const int exponent = magnitude >> kFractionBits;
    const int fraction = magnitude & ((1 << kFractionBits) - 1);
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), 1 - kBias - kFractionBits);
    return sign * std::ldexp(static_cast<float>(fraction + (1 << kFractionBits)), exponent - kBias - kFractionBits);
  }

  // To nearest even, once. Magnitudes are numbered in order, so rounding up is counting one further.
  static Float8 nearest(float x) {
    const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
    if (x != x) return {kNaN};
    const uint32_t u = std::bit_cast<uint32_t>(std::fabs(x));
    constexpr int kDrop = 23 - kFractionBits;
    constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(127 - kBias + 1) << 23;
    uint32_t magnitude = 0;
    if (u < kSmallestNormal)  // in units of the smallest number: float's own rounding is the right one
      magnitude = static_cast<uint32_t>(std::nearbyint(std::ldexp(std::fabs(x), kBias - 1 + kFractionBits)));
    else
      magnitude = ((u + (1u << (kDrop - 1)) - 1 + ((u >> kDrop) & 1u)) >> kDrop) -
                  (static_cast<uint32_t>(127 - kBias) << kFractionBits);
    return {static_cast<uint8_t>(sign | (magnitude > kLargest ? kLargest : magnitude))};
  }
  static Float8 from_float(float x) { return nearest(Half::from_float(x).to_float()); }
};
using Float8E4m3 = Float8<4>;
using Float8E5m2 = Float8<5>;

}  // namespace lockstep::nccl
