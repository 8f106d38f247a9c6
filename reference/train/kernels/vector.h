// SPDX-License-Identifier: MIT
//
// How loops become vector code, on whatever machine the program runs.
//
// The body of every kernel's block (threads.h) is compiled once for each of a few instruction sets and the best one is
// taken at run time. That needs nothing of the body: it is inlined into a function of that set. For this the helpers
// that a body calls say LOCKSTEP_INLINE. Their loops say `#pragma omp simd`: no iteration needs another's result,
// though `out` may be `in`.
//
// The bits are the same for every set: there are no contracted operations, an exponential of our own, and sums run in
// lanes of a fixed number whatever the width of the registers.

#pragma once

#include <cmath>
#include <cstdint>

#include "reference/train/kernels/numbers.h"

namespace train {

enum class Isa { plain, avx2, avx512 };
Isa best_isa();         // of this machine
Isa isa();              // in use
void set_isa(Isa isa);  // for tests; not beyond the best

template <class Body>
__attribute__((noinline)) void run_plain(const Body& body) {
  body();
}
#if defined(__x86_64__)
template <class Body>
__attribute__((target("avx2"), flatten, noinline)) void run_avx2(const Body& body) {
  body();
}
#if defined(__clang__)
#define LOCKSTEP_AVX512 "avx2,avx512f,avx512bw,avx512dq,avx512vl"
#else
#define LOCKSTEP_AVX512 "avx2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
template <class Body>
__attribute__((target(LOCKSTEP_AVX512), flatten, noinline)) void run_avx512(const Body& body) {
  body();
}
#endif

// Runs body() as code of the instruction set in use.
template <class Body>
void vectorised(const Body& body) {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return run_avx512(body);
  if (isa() == Isa::avx2) return run_avx2(body);
#endif
  run_plain(body);
}

// --- sums ------------------------------------------------------------------------------------------------------------

inline constexpr int64_t kLanes = 32;

template <class W>
LOCKSTEP_INLINE W sum_of_lanes(W* lanes) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

// The sum of term(i) for i in [0, count): term i goes to lane i % kLanes, then lanes are added in a tree.
template <class W, class Term>
LOCKSTEP_INLINE W sum_over(int64_t count, const Term& term) {
  W lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += term(i + l);
  }
  for (int64_t l = 0; i + l < count; ++l) lanes[l] += term(i + l);
  return sum_of_lanes(lanes);
}

// The largest of `start` and value(i); no order could change it.
template <class W, class Value>
LOCKSTEP_INLINE W largest_over(int64_t count, W start, const Value& value) {
  W lanes[kLanes];
  for (W& lane : lanes) lane = start;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) {
      const W candidate = value(i + l);
      lanes[l] = candidate > lanes[l] ? candidate : lanes[l];
    }
  }
  for (int64_t l = 0; i + l < count; ++l) {
    const W candidate = value(i + l);
    lanes[l] = candidate > lanes[l] ? candidate : lanes[l];
  }
  W largest = start;
  for (const W lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

// --- exponential -----------------------------------------------------------------------------------------------------

LOCKSTEP_INLINE double exp_of(double x) { return std::exp(x); }

// e^x within 1.1 ulp, infinities, NaN and denormals included. x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2
// P(r), P of degree 4 through the Chebyshev nodes (its error is a tenth of an ulp); 2^n in two factors, so that neither
// leaves the normal numbers.
LOCKSTEP_INLINE float exp_of(float x) {
  constexpr float kShift = 0x1.8p23F;  // added to a small number, its last bit is worth 1
  x = x > 89.0F ? 89.0F : x;           // e^89 is beyond float
  x = x < -104.0F ? -104.0F : x;       // e^-104 is 0
  const float shifted = x * 1.44269504F + kShift, whole = shifted - kShift;
  const float r = (x - whole * 0.693359375F) - whole * -2.12194440e-4F;  // ln 2 in two parts, the first of 9 bits
  float p = 0.001393368816934526F;
  p = p * r + 0.008363205008208752F;
  p = p * r + 0.041666463017463684F;
  p = p * r + 0.16666576266288757F;
  p = p * r + 0.5F;
  p = 1.0F + (r + r * r * p);
  const int32_t n = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShift));
  const int32_t half = n >> 1;
  const float first = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float second = std::bit_cast<float>(static_cast<uint32_t>(n - half + 127) << 23);
  return p * first * second;
}

}  // namespace train
