// SPDX-License-Identifier: MIT
//
// Init, split, finalize, destroy, abort: the calls that make and end communicators, and those that are rare and local.

#pragma once

#include "interpose/shim/calls.h"
#include "interpose/shim/comms.h"
#include "interpose/trace/writer.h"

namespace lockstep::shim {

void begin_lifecycle(Call& call, abi::Fn fn, abi::FunctionKind kind, const CallArgs& args, trace::BeginFields& f);
// The serial that belongs into the end record.
uint32_t end_lifecycle(Call& call, abi::Fn fn, abi::FunctionKind kind, const CallArgs& args, ncclResult_t result,
                       uint64_t stamp, ThreadState& thread);

void finish_grouped_init(Comm& comm, void** new_handle, ncclResult_t result, uint64_t stamp);

// An operation succeeded on it: a nonblocking communicator whose init was in progress is ready.
void comm_became_ready(Comm& comm, uint64_t stamp);
inline void comm_proved_ready(Comm& comm, uint64_t stamp) {
  if (__builtin_expect(comm.slot->state.load(std::memory_order_relaxed) ==
                           static_cast<uint32_t>(trace::CommState::initialising), 0))
    comm_became_ready(comm, stamp);
}

// A call succeeded on a communicator whose making we did not see: remembered from now on, with id 0.
void adopt_comm(uint64_t handle, uint64_t stamp, unsigned copy);

// From here on something communicates that no call will show: one mark a communicator and kind. nullptr: unknown which.
void go_blind(Comm* comm, uint32_t bit, const char* what);

}  // namespace lockstep::shim
