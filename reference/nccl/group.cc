// SPDX-License-Identifier: MIT
//
// See group.h.

#include "reference/nccl/group.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "reference/cuda/signals.h"
#include "reference/nccl/launch.h"
#include "reference/nccl/log.h"

namespace lockstep::nccl {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  int blocking = -1;  // not known yet
  std::shared_ptr<GroupWork> work;
};
thread_local Group t_group;

// A communicator takes part; false: it is blocking and the others are not, or the other way round.
bool join(const std::shared_ptr<Comm>& comm) {
  const int blocking = comm->config.blocking ? 1 : 0;
  if (t_group.blocking >= 0 && t_group.blocking != blocking) {
    warn("Blocking and nonblocking communicators are not allowed in the same group.");
    return false;
  }
  t_group.blocking = blocking;
  if (!t_group.work) t_group.work = std::make_shared<GroupWork>();
  auto& comms = t_group.work->comms;
  if (std::find(comms.begin(), comms.end(), comm) == comms.end()) comms.push_back(comm);
  return true;
}

ncclResult_t run(GroupWork& work) {
  if (const ncclResult_t result = run_jobs(work.jobs, &work.given_up); result != ncclSuccess) return result;
  for (const auto& plan : work.planned)
    if (const ncclResult_t result = check_launch(*plan.comm, plan.calls); result != ncclSuccess) return result;
  for (const auto& plan : work.planned)
    if (const ncclResult_t result = launch(plan.comm, plan.calls); result != ncclSuccess) return result;
  return ncclSuccess;
}

// The communicators may be used again, or have failed. What an operation in flight has found wrong meanwhile stays.
void settle(const std::shared_ptr<GroupWork>& work, ncclResult_t result) {
  for (const auto& comm : work->comms) {
    {
      const std::lock_guard lock(comm->work_mutex);
      if (comm->work == work) comm->work.reset();
    }
    int expected = ncclInProgress;
    comm->async_error.compare_exchange_strong(expected, result);
  }
  work->over.store(true);
  api().local_bell().ring();
}

ncclResult_t run_apart(std::shared_ptr<GroupWork> work) {
  for (const auto& comm : work->comms) {
    const std::lock_guard lock(comm->work_mutex);
    comm->work = work;
    comm->async_error.store(ncclInProgress);
  }
  const host::SignalsBlocked blocked;
  std::thread([work = std::move(work)]() mutable {
    const ncclResult_t result = run(*work);
    work->jobs.clear();
    settle(work, result);
  }).detach();
  return ncclInProgress;
}

// Leaves one level; true if it was the outermost, whose group then is `group`.
bool leave(Group& group, ncclResult_t& result) {
  result = ncclSuccess;
  if (t_group.depth == 0) {
    warn("ncclGroupEnd: not in a group call.");
    result = ncclInvalidUsage;
    return false;
  }
  if (--t_group.depth > 0) return false;
  group = std::exchange(t_group, {});
  return true;
}

// A failed group fails its nonblocking communicators for good.
ncclResult_t drop(const Group& group) {
  if (group.blocking == 0)
    for (const auto& comm : group.work->comms) comm->async_error.store(group.error);
  return group.error;
}

// No model of any network: a microsecond a call, and 10 GB/s.
float estimate(const GroupWork& work) {
  double microseconds = -1;
  for (const auto& plan : work.planned)
    for (const Call& call : plan.calls)
      microseconds = std::max(microseconds, 0.0) + 1 + static_cast<double>(call.bytes()) / 1e4;
  return static_cast<float>(microseconds);
}

}  // namespace

bool in_group() { return t_group.depth > 0; }
void group_start() { ++t_group.depth; }

ncclResult_t group_end() {
  Group group;
  ncclResult_t result = ncclSuccess;
  if (!leave(group, result)) return result;
  if (group.error != ncclSuccess) return drop(group);
  if (!group.work) return ncclSuccess;
  return group.blocking == 0 ? run_apart(std::move(group.work)) : run(*group.work);
}

// Jobs are done, operations only planned.
ncclResult_t group_simulate_end(ncclSimInfo_t* out) {
  if (out == nullptr) return group_end();
  Group group;
  ncclResult_t result = ncclSuccess;
  if (!leave(group, result)) return result;
  if (group.error != ncclSuccess) return drop(group);
  ncclSimInfo_t own = NCCL_SIM_INFO_INITIALIZER;
  size_t size = 0;
  std::memcpy(&size, out, sizeof size);
  size = std::min(size, sizeof own);
  std::memcpy(&own, out, size);
  if (own.magic != NCCL_SIM_INFO_MAGIC) {
    warn("ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER");
    return ncclInvalidArgument;
  }
  own.estimatedTime = NCCL_UNDEF_FLOAT;
  if (group.work) {
    if (result = run_jobs(group.work->jobs); result != ncclSuccess) return result;
    for (const auto& plan : group.work->planned)
      if (result = check_launch(*plan.comm, plan.calls); result != ncclSuccess) return result;
    own.estimatedTime = estimate(*group.work);
  }
  std::memcpy(out, &own, size);
  return ncclSuccess;
}

ncclResult_t group_error(ncclResult_t result) {
  if (in_group() && t_group.error == ncclSuccess) t_group.error = result;
  return result;
}

ncclResult_t issue(const std::shared_ptr<Comm>& comm, Call call) {
  call.queue = api().stream(call.stream, comm->device);
  if (!in_group() && comm->config.blocking) return launch_one(comm, std::move(call));
  group_start();
  if (join(comm)) {
    auto& planned = t_group.work->planned;
    auto plan = std::find_if(planned.begin(), planned.end(), [&](const auto& p) { return p.comm == comm; });
    if (plan == planned.end()) plan = planned.insert(plan, {comm, {}});
    plan->calls.push_back(std::move(call));
  } else {
    group_error(ncclInvalidArgument);
  }
  const ncclResult_t own = t_group.error;
  const ncclResult_t result = group_end();
  return result == ncclSuccess ? own : result;
}

ncclResult_t run_or_queue(std::unique_ptr<Job> job, const std::shared_ptr<Comm>& comm) {
  group_start();
  ncclResult_t own = ncclSuccess;
  if (join(comm))
    t_group.work->jobs.push_back(std::move(job));
  else
    own = group_error(ncclInvalidArgument);
  const ncclResult_t result = group_end();
  return result == ncclSuccess ? own : result;
}

void give_up_work(Comm& comm) {
  std::shared_ptr<GroupWork> work;
  {
    const std::lock_guard lock(comm.work_mutex);
    work = comm.work;
  }
  if (!work) return;
  work->given_up.store(true);
  host::Backoff backoff(1);
  while (!work->over.load()) {
    if (!backoff.pause()) api().local_bell().sleep(backoff.next_bound_ns(), [&] { return !work->over.load(); });
  }
}

}  // namespace lockstep::nccl
