// SPDX-License-Identifier: MIT
//
// See group.h.

#include "reference/nccl/group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "reference/nccl/launch.h"
#include "reference/nccl/log.h"

namespace lockstep::nccl {
namespace {

struct Planned {
  std::shared_ptr<Comm> comm;
  std::vector<Call> calls;
};
struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Planned> planned;  // by communicator, in order of first use
  std::vector<std::unique_ptr<Job>> jobs;
};
thread_local Group t_group;

ncclResult_t run(Group group) {
  if (group.error != ncclSuccess) return group.error;
  if (const ncclResult_t result = run_jobs(group.jobs); result != ncclSuccess) return result;
  for (const Planned& plan : group.planned)
    if (const ncclResult_t result = check_launch(*plan.comm, plan.calls); result != ncclSuccess) return result;
  for (const Planned& plan : group.planned)
    if (const ncclResult_t result = launch(plan.comm, plan.calls); result != ncclSuccess) return result;
  return ncclSuccess;
}

}  // namespace

bool in_group() { return t_group.depth > 0; }
void group_start() { ++t_group.depth; }

ncclResult_t group_end() {
  if (t_group.depth == 0) {
    warn("ncclGroupEnd: not in a group call.");
    return ncclInvalidUsage;
  }
  if (--t_group.depth > 0) return ncclSuccess;
  return run(std::exchange(t_group, {}));
}

ncclResult_t group_error(ncclResult_t result) {
  if (in_group() && t_group.error == ncclSuccess) t_group.error = result;
  return result;
}

ncclResult_t issue(const std::shared_ptr<Comm>& comm, const Call& call) {
  if (!in_group()) return launch_one(comm, call);
  auto plan =
      std::find_if(t_group.planned.begin(), t_group.planned.end(), [&](const Planned& p) { return p.comm == comm; });
  if (plan == t_group.planned.end()) plan = t_group.planned.insert(plan, {comm, {}});
  plan->calls.push_back(call);
  return ncclSuccess;
}

ncclResult_t run_or_queue(std::unique_ptr<Job> job) {
  if (in_group()) {
    t_group.jobs.push_back(std::move(job));
    return ncclSuccess;
  }
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(std::move(job));
  return run_jobs(jobs);
}

}  // namespace lockstep::nccl
