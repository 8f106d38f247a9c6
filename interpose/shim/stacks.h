// SPDX-License-Identifier: MIT
//
// Native stacks of calling threads, each kept once.
//
// libunwind does the walking: its unw_backtrace remembers frames per thread and costs 6 to 7 ns a frame when warm. It
// is loaded by name into a private scope at the first communicator and never linked, because a preloaded library that
// NEEDs libunwind makes every C++ exception of the job unwind by it. Without it there are calls but no stacks.
//
// A stack is looked up by a hash over all of it. Looking at its top alone would be cheaper and wrong: a training loop
// reaches the same call through many paths.

#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/trace/format.h"

namespace lockstep::shim {

inline constexpr int kMostFrames = 64;

// Loads libunwind. Returns why there are no stacks, or nullptr.
const char* start_stacks();

// The stack of the calling thread without this library's own frames; 0 = none.
using Backtrace = int (*)(void**, int);
extern std::atomic<Backtrace> backtrace_function;  // libunwind's; nullptr = no stacks
trace::StackRef walk_stack(Backtrace walk);
inline trace::StackRef capture_stack() {
  const Backtrace walk = backtrace_function.load(std::memory_order_relaxed);
  return __builtin_expect(walk != nullptr, 0) ? walk_stack(walk) : 0;  // beside the straight line
}

void forget_stacks();  // in the child of a fork: its next trace is another file

}  // namespace lockstep::shim
