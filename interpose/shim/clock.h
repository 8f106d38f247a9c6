// SPDX-License-Identifier: MIT
//
// Time stamps for records: the time stamp counter where it runs at one rate through all states of the processor, else
// the monotonic clock, at two to three times the price.

#pragma once

#include <time.h>

#include <cstdint>

#include "interpose/trace/format.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace lockstep::shim {

inline int64_t nanoseconds(clockid_t which) {
  struct timespec now;
  clock_gettime(which, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

inline bool tsc_is_steady() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8));
#else
  return false;
#endif
}

inline uint64_t stamp_now(bool tsc) {
#if defined(__x86_64__)
  if (tsc) return __rdtsc();
#endif
  return static_cast<uint64_t>(nanoseconds(CLOCK_MONOTONIC));
}

// All clocks at one moment: of several readings the one during which the least time passed.
inline trace::ClockPair read_clocks(bool tsc) {
  trace::ClockPair best = {};
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 4; i++) {
    const uint64_t before = stamp_now(tsc);
    const int64_t mono = nanoseconds(CLOCK_MONOTONIC);
    const uint64_t after = stamp_now(tsc);
    const int64_t wall = nanoseconds(CLOCK_REALTIME);
    if (after - before >= least) continue;
    least = after - before;
    best = {tsc ? before + (after - before) / 2 : static_cast<uint64_t>(mono), mono, wall};
  }
  return best;
}

}  // namespace lockstep::shim
