// SPDX-License-Identifier: MIT
//
// Groups. Between ncclGroupStart and the outermost ncclGroupEnd a thread's calls only gather; then communicators are
// made or split, and all operations launched. An error inside a group makes ncclGroupEnd return it and drops the whole
// group, which is what the library does, whatever its guide says.

#pragma once

#include <memory>

#include "reference/nccl/comm.h"

namespace lockstep::nccl {

void group_start();
ncclResult_t group_end();
bool in_group();
// Remembers the first error of the group, if there is one, and returns it.
ncclResult_t group_error(ncclResult_t result);

// The one place where an operation is issued: at once, or when the group ends.
ncclResult_t issue(const std::shared_ptr<Comm>& comm, const Call& call);
ncclResult_t run_or_queue(std::unique_ptr<Job> job);

}  // namespace lockstep::nccl
