// SPDX-License-Identifier: MIT
//
// LOCKSTEP_HOST_FAULT: mistakes on purpose, at a chosen call of a chosen rank, so that what is meant to find mistakes
// can be tried out. Faults are divided by semicolons:
//
//   ACTION:rank=R,call=N[,fn=NAME][,...]     e.g. "skip:rank=2,call=17;delay:rank=1,call=5,seconds=2"
//
// R is the world rank: RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK or PMI_RANK, else the rank in the first communicator
// that the thread made; communicators made of others keep it. N counts from 1 the rank's operations (collectives,
// sends, receives; an all-to-all is one), on all its communicators together; with fn, those of that function.
//
//   skip                 the call succeeds and does nothing
//   delay    seconds=S   the caller sleeps first
//   reorder              done after the thread's next operation, or at the end of its group or communicator
//   count    value=N     another count
//   dtype    value=T     another type: float32, bfloat16, ... or a number
//   root     value=R     another root, or peer of a message
//   op       value=O     another operator: sum, prod, max, min, avg or a number
//   corrupt  element=I   flips a bit of one element of the result: [bit=B], else the second highest
//   fail     code=C      nothing is done, and the call returns this: invalid-usage, system-error, ... or a number
//   kill                 SIGKILL for the process
//   stop                 SIGSTOP for the process
//
// The call is changed where the library takes it in: tools in front of the library see what the program asked for.

#pragma once

#include <functional>

#include "reference/nccl/comm.h"

namespace lockstep::nccl {

// ncclInvalidArgument, and a sentence on stderr, if the setting cannot be read.
ncclResult_t check_fault_setting();

struct Faulted {
  bool skip = false;
  bool hold = false;
  ncclResult_t result = ncclSuccess;  // the call fails with this
};
// Counts the call, and does to it and to the caller what the setting says.
Faulted apply_faults(const Comm& comm, Call& call);
// Flips the bit that a fault has chosen, when the operation is over.
void spoil_result(const Comm& comm, const Call& call);

// A call that is done later by this thread: after its next one, or at the end of what it belongs to.
void hold_back(std::function<void()> call);
void do_held_back();

}  // namespace lockstep::nccl
