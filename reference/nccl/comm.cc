// SPDX-License-Identifier: MIT
//
// See comm.h: the registry of handles, reaching into peers' memory, and the end of a communicator. Its beginning is in
// init.cc.

#include "reference/nccl/comm.h"

#include <sched.h>

#include <unordered_map>
#include <utility>

namespace lockstep::nccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, std::shared_ptr<Comm>> comms;
};
Registry& registry() {
  static Registry* const the_one = new Registry;  // never destroyed: threads may run while the process exits
  return *the_one;
}

}  // namespace

ncclComm_t handle_of(const Comm& comm) { return reinterpret_cast<ncclComm_t>(const_cast<Comm*>(&comm)); }

void register_comm(const std::shared_ptr<Comm>& comm) {
  const std::lock_guard lock(registry().mutex);
  registry().comms.emplace(handle_of(*comm), comm);
}
void unregister_comm(const Comm& comm) {
  const std::lock_guard lock(registry().mutex);
  registry().comms.erase(handle_of(comm));
}
std::shared_ptr<Comm> find_comm(ncclComm_t handle) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().comms.find(handle);
  return found == registry().comms.end() ? nullptr : found->second;
}

const std::byte* Comm::reach(int peer, const Location& where) {
  const auto p = static_cast<size_t>(peer);
  if (same_process[p]) return reinterpret_cast<const std::byte*>(where.address);
  if (!peer_heaps[p]) peer_heaps[p] = api().peer_heap(control->member(peer).heap);
  return peer_heaps[p] ? peer_heaps[p]->base + where.heap_offset : nullptr;
}

bool Comm::reachable(const void* pointer) const { return all_same_process || api().heap_offset(pointer).has_value(); }

Location Comm::locate(const void* pointer) const {
  return {reinterpret_cast<uint64_t>(pointer), api().heap_offset(pointer).value_or(0)};
}

// Waits for what is in flight; with a peer that never comes, for ever, as in NCCL.
ncclResult_t destroy(const std::shared_ptr<Comm>& comm) {
  host::Point last;
  {
    const std::lock_guard lock(comm->issue_mutex);
    last = std::move(comm->last);
    comm->last = {};
  }
  api().wait(last);
  unregister_comm(*comm);
  return ncclSuccess;
}

// Operations in flight end at their next step. When this returns none of them touches the user's memory any more.
void abort(const std::shared_ptr<Comm>& comm) {
  comm->aborted.store(true);
  if (comm->ready.load()) {
    comm->control->header().bell.ring();
    comm->self().bell.ring();
  }
  comm->control->header().join_bell.ring();
  api().local_bell().ring();
  api().poke();
  while (comm->stepping.load() != 0) sched_yield();
  unregister_comm(*comm);
}

ncclResult_t run_jobs(const std::vector<std::unique_ptr<Job>>& jobs) {
  std::vector<bool> over(jobs.size(), false);
  host::Backoff backoff(api().ranks_per_core());
  // One round over all jobs; says on which one to sleep, if any is left.
  const auto round = [&](Job*& waiting) {
    bool moved = false;
    waiting = nullptr;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (over[i]) continue;
      const host::Step step = jobs[i]->step();
      over[i] = step == host::Step::done;
      moved |= step != host::Step::waiting;
      if (step == host::Step::waiting) waiting = jobs[i].get();
    }
    return moved;
  };
  Job* waiting = nullptr;
  for (;;) {
    const bool moved = round(waiting);
    if (moved) backoff.progressed();
    if (waiting == nullptr && !moved) break;
    if (moved || backoff.pause()) continue;
    waiting->bell().sleep(backoff.next_bound_ns(), [&] {
      Job* still = nullptr;
      const bool more = round(still);
      return still != nullptr && !more;
    });
  }
  for (const auto& job : jobs)
    if (job->result() != ncclSuccess) return job->result();
  return ncclSuccess;
}

}  // namespace lockstep::nccl
