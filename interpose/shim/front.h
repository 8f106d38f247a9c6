// SPDX-License-Identifier: MIT
//
// Other front ends than the hooks, for NCCL that is linked statically into the program: there is no symbol to stand in
// front of, but NCCL itself tells tools of its calls, as NVTX ranges (nvtx.cc) and through its profiler plugin
// (profiler.cc). They feed the same records. What they do not tell stays unknown: NVTX has bytes and no type, buffers
// or stream; the plugin has no peer and no operator.
//
// Where the hooks see the calls these stay silent: by depth inside a hooked call, and for good once a hook has
// recorded.

#pragma once

#include <cstdint>

#include "interpose/shim/calls.h"
#include "interpose/shim/comms.h"

namespace lockstep::shim {

struct FrontComm {
  uint64_t id;
  int32_t nranks = -1, rank = -1, device = -1;
  const char* name = nullptr;
};

// A call that a front end tells of, from its begin to its end on the same thread.
struct FrontCall {
  bool open;
  abi::Fn fn;
  abi::FunctionKind kind;
  CallArgs args;
  Call call;
};

// What a thread has open in the front ends. Mapped when it is first needed, since thread-local memory is scarce for a
// library that is loaded late, and unmapped when the thread ends.
struct FrontState {
  static constexpr unsigned kMostRanges = 32;
  FrontCall plugin_call;    // of the profiler interface
  FrontCall range_call;     // of NCCL's NVTX ranges
  unsigned nccl_depth;
  unsigned call_depth;      // nccl_depth at which range_call began; 0 = none is open
  unsigned range_depth;     // of the program's own ranges
  bool is_phase[kMostRanges];
  char before[kMostRanges][32];  // the phase that was
};
FrontState* front_state();  // nullptr without recording or memory

bool front_may_record();          // starts recording; false when the hooks see everything already
Comm* front_comm(const FrontComm& facts);  // the one with this id that this thread made, else any, else a new one
Comm* make_front_comm(const FrontComm& facts);
uint64_t front_handle(const Comm& comm);
void begin_front(FrontCall& call, abi::Fn fn, const CallArgs& args);
void end_front(FrontCall& call);

}  // namespace lockstep::shim
