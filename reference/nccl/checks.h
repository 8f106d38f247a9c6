// SPDX-License-Identifier: MIT
//
// What NCCL looks at before it does anything, in its order and with its words. NCCL_DEBUG=WARN prints them,
// ncclGetLastError keeps the last one.

#pragma once

#include <memory>

#include "reference/nccl/comm.h"
#include "reference/nccl/log.h"

namespace lockstep::nccl {

// The CUDA runtime can be used by this process.
ncclResult_t cuda_ready();
ncclResult_t cuda_works();  // that, and nothing has put CUDA out of order for good: new work can be given to it
ncclResult_t look_up(const char* name, ncclComm_t handle, std::shared_ptr<Comm>& comm);
// A communicator that may be used: its last call is over and went well, and it was not finalized.
ncclResult_t check_ready(const Comm& comm);
ncclResult_t look_up_ready(const char* name, ncclComm_t handle, std::shared_ptr<Comm>& comm);
ncclResult_t check_pointer(const char* name, const char* what, const void* pointer);
// Buffers that are memory of nobody. NCCL does not look at them: its kernel runs into them, so the call succeeds, every
// CUDA call from then on fails, and the peers wait. True: so it was, and there is nothing to start.
bool runs_into_nothing(const Comm& comm, const Call& call);
// An operation's arguments; fills in what its operator comes down to.
ncclResult_t check_arguments(const char* name, Comm& comm, Call& call);
// The same for what NCCL finds out when it takes the operation in: not at all for a count of 0.
ncclResult_t check_operator(Comm& comm, Call& call);

}  // namespace lockstep::nccl
