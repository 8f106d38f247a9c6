// SPDX-License-Identifier: MIT
//
// The one object with the state of recording in this process, and how recording starts.
//
//   idle --first ncclGetUniqueId or ncclCommInit*--> starting --> on      (a trace file is open)
//                                                             \-> off     (LOCKSTEP=0, or it failed; said once)
//   fork: the child is idle again, without the parent's file, and starts its own only with a communicator of its own.
//
// Everything here is plain data that is there before any code runs: the library has no constructors, and leaks all of
// it at exit, because a job may call NCCL from its own exit handlers.

#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/shim/config.h"
#include "interpose/trace/writer.h"

namespace lockstep::shim {

enum class Recording : uint32_t { idle, starting, on, off };

inline constexpr uint32_t kNotReady = UINT32_MAX;

struct Recorder {
  std::atomic<Recording> state;
  std::atomic<uint32_t> epoch;   // counts forks this process descends from, so that what belongs to the parent is told
  // What ThreadState::epoch is of threads that need nothing more before they record: while recording is on and a hook
  // has recorded.
  std::atomic<uint32_t> ready{kNotReady};
  bool tsc;
  std::atomic<uint32_t> hooked;  // a hook has recorded a call: front ends stay silent
  std::atomic<uint32_t> groups;  // outermost groups begun
  trace::Trace trace;
  Config config;
};
extern Recorder recorder;

inline bool recording() { return recorder.state.load(std::memory_order_acquire) == Recording::on; }
bool start_recording();          // true when recording is on afterwards; others wait for the one that starts it
void forget_recording();         // in the child of a fork

}  // namespace lockstep::shim
