// SPDX-License-Identifier: MIT
//
// Groups. Between ncclGroupStart and the outermost ncclGroupEnd a thread's calls only gather; then communicators are
// made, split or ended, and all operations launched. An error inside a group makes ncclGroupEnd return it and drops the
// whole group, which is what the library does, whatever its guide says.
//
// Nonblocking communicators: every call is a group, if only of itself, and the group's work is done by a thread of its
// own. Until it is over the communicators' asynchronous error is ncclInProgress, and they take no other call.

#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "reference/nccl/comm.h"

namespace lockstep::nccl {

// What a group does at its end.
struct GroupWork {
  struct Planned {
    std::shared_ptr<Comm> comm;
    std::vector<Call> calls;
  };
  std::vector<Planned> planned;  // by communicator, in order of first use
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::shared_ptr<Comm>> comms;  // all that are in it
  std::atomic<bool> given_up{false};         // one of them was aborted
  std::atomic<bool> over{false};
};

void group_start();
ncclResult_t group_end();
ncclResult_t group_simulate_end(ncclSimInfo_t* info);
bool in_group();
// Remembers the first error of the group, if there is one, and returns it.
ncclResult_t group_error(ncclResult_t result);

// The one place where an operation is issued: at once, or when the group ends.
ncclResult_t issue(const std::shared_ptr<Comm>& comm, Call call);
// `comm` is the one whose asynchronous error tells how far the job is.
ncclResult_t run_or_queue(std::unique_ptr<Job> job, const std::shared_ptr<Comm>& comm);

// Ends a nonblocking communicator's call that is at work, and waits for its thread.
void give_up_work(Comm& comm);

}  // namespace lockstep::nccl
