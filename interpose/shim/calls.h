// SPDX-License-Identifier: MIT
//
// The two halves of recording a call: begin before the true function runs, end after it came back. A call that never
// comes back has its begin on record, with its stack: that is the evidence the whole toolkit rests on.

#pragma once

#include <cstdint>

#include "interpose/abi/functions.h"
#include "interpose/abi/nccl.h"
#include "interpose/shim/real.h"
#include "interpose/shim/thread.h"

namespace lockstep::shim {

// A call's arguments by role, whatever their order in the function.
struct CallArgs {
  uint64_t sendbuff = 0, recvbuff = 0, count = 0, stream = 0, comm = 0;
  int32_t dtype = 0, redop = 0, peer = -1;
  int32_t rank = -1, nranks = -1, color = INT32_MIN, key = 0;
  ncclComm_t* new_comm = nullptr;
  const void* unique_id = nullptr;
  const void* out = nullptr;
  const ncclConfig_t* config = nullptr;
  unsigned copy = 0;  // of libnccl that is called
  bool front = false;     // told by a front end (front.h): the stream may be unknown
  bool captured = false;  // which says so itself
};

// What a hook keeps between the two halves.
struct Call {
  uint64_t begin;                    // sequence of the begin record
  trace::Record* record;             // where it is, as long as the thread owns its block
  uint32_t epoch;                    // of the recorder; another one at the end means we are now in the child of a fork
  bool recorded;
  bool counted;                      // it took a number of its communicator
  bool digested;                     // the digests of its buffers are wanted
  DigestJob digest;
  bool watchable;                    // events may be recorded on its stream
  uint16_t depth;                    // of the thread, to go back to
  struct Probe* probe;               // see states.h; nullptr = not watched
  Comm* comm;
  Comm* made;                        // of an init call: the first communicator it makes
  uint64_t old_handle;               // what *new_comm held before
  trace::CallSummary* summary;
  std::atomic<uint64_t>* edge;       // of a send or receive: the counter its number is from
};

constexpr bool enqueues(abi::FunctionKind kind) {
  return kind == abi::FunctionKind::collective || kind == abi::FunctionKind::p2p || kind == abi::FunctionKind::onesided;
}

// Records nothing when recording is off or the thread is inside a hooked call already.
void begin_call(Call& call, abi::Fn fn, abi::FunctionKind kind, const CallArgs& args);
void end_call(Call& call, abi::Fn fn, abi::FunctionKind kind, const CallArgs& args, ncclResult_t result);

// The marks that hold for what the thread does now. One that never marks (an autograd thread) works on what the
// process's latest mark says.
struct MarksNow {
  uint64_t step;
  uint16_t bits;
};
MarksNow latest_marks();
inline MarksNow marks_of(const ThreadState& thread) {
  if (__builtin_expect(!thread.mark_bits, 0) && recorder.trace.status->process_marks.load(std::memory_order_relaxed))
    return latest_marks();
  return {thread.step, thread.mark_bits};
}

void note_unique_id(const void* id);  // one that NCCL made for itself inside another call (ncclCommInitAll does)

inline bool passes_unrecorded() {
  return recorder.state.load(std::memory_order_relaxed) == Recording::off || (this_thread.depth & kInRecorder) != 0;
}

}  // namespace lockstep::shim
