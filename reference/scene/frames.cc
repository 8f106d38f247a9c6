// SPDX-License-Identifier: MIT

#include "reference/scene/frames.h"

// Never inlined, and the empty statement after the call keeps it from becoming a jump: either would lose the frame.
#define LOCKSTEP_FRAME(name)                                                          \
  extern "C" __attribute__((noinline)) void name(const std::function<void()>& body);  \
  extern "C" __attribute__((noinline)) void name(const std::function<void()>& body) { \
    body();                                                                           \
    __asm__ volatile("" ::: "memory");                                                \
  }
#include "tools/scenario/frames.def"
#undef LOCKSTEP_FRAME

namespace lockstep::scene {

void run_in(const std::string& function, const std::function<void()>& body) {
  struct Frame {
    const char* name;
    void (*run)(const std::function<void()>&);
  };
  static constexpr Frame frames[] = {
#define LOCKSTEP_FRAME(name) {#name, ::name},
#include "tools/scenario/frames.def"
#undef LOCKSTEP_FRAME
  };
  for (const Frame& frame : frames)
    if (function == frame.name) return frame.run(body);
}

}  // namespace lockstep::scene
