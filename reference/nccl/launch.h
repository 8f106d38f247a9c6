// SPDX-License-Identifier: MIT
//
// From calls to stream work: what one communicator got in one group becomes one operation.

#pragma once

#include <memory>

#include "reference/nccl/comm.h"

namespace lockstep::nccl {

// The checks that need the whole group; nothing has been launched when one fails.
ncclResult_t check_launch(const Comm& comm, Calls calls);

// Enqueues. The operation runs on the first stream of the calls; it waits for all other streams they name, and those
// wait for it, as if the group stood in each of them. Fails if the streams are captured and cannot take it.
ncclResult_t launch(const std::shared_ptr<Comm>& comm, Calls calls);

// Both for a single call on its own.
ncclResult_t launch_one(const std::shared_ptr<Comm>& comm, Call call);

}  // namespace lockstep::nccl
