// SPDX-License-Identifier: MIT
//
// The three element types as C++ sees them. Arithmetic is done in the wide type: double, or float for both others.

#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

// For what is called in vector code (vector.h).
#define LOCKSTEP_INLINE __attribute__((always_inline)) inline

namespace train {

struct Bf16 {
  uint16_t bits;
};

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

LOCKSTEP_INLINE double load(double value) { return value; }
LOCKSTEP_INLINE float load(float value) { return value; }
LOCKSTEP_INLINE float load(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

LOCKSTEP_INLINE Bf16 to_bf16(float value) {  // to nearest even; a NaN stays one
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U), nan = bits | 0x400000U;
  return {static_cast<uint16_t>(((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded) >> 16)};
}
// Rounded once: through a float rounded to odd, which remembers that there was more.
LOCKSTEP_INLINE Bf16 to_bf16(double value) {
  auto narrow = static_cast<float>(value);
  auto bits = std::bit_cast<uint32_t>(narrow);
  const bool finite = (bits & 0x7f800000U) != 0x7f800000U;
  if (finite && static_cast<double>(narrow) != value) {
    const double size = value < 0 ? -value : value, got = narrow < 0 ? -static_cast<double>(narrow) : narrow;
    if (got > size) --bits;
    bits |= 1U;
    narrow = std::bit_cast<float>(bits);
  }
  return to_bf16(narrow);
}

template <class T, class W>
LOCKSTEP_INLINE T store(W value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16(value);
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace train
