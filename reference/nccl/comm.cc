// SPDX-License-Identifier: MIT
//
// See comm.h: the registry of handles, reaching into peers' memory, and the end of a communicator. Its beginning is in
// init.cc.

#include "reference/nccl/comm.h"

#include <sched.h>

#include <cstring>
#include <unordered_map>
#include <utility>

#include "reference/nccl/group.h"
#include "reference/nccl/log.h"

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

uint64_t Call::scale_now() const {
  uint64_t now = scale;
  if (scale_at != nullptr) std::memcpy(&now, scale_at, abi::dtype_size(dtype));
  return now;
}

// Whoever steps an operation announces it first and then looks whether it is to go on; see launch.cc.
static void wait_until_nobody_steps(Comm& comm) {
  if (comm.ready.load()) {
    comm.control->header().bell.ring();
    comm.self().bell.ring();
  }
  api().local_bell().ring();
  api().poke();
  while (comm.stepping.load() != 0) sched_yield();
}

void drop_operations(Comm& comm) {
  {
    const std::lock_guard lock(comm.issue_mutex);
    comm.dropped.store(comm.issued.load());
  }
  wait_until_nobody_steps(comm);
}

// A call of a nonblocking communicator that is at work gives up first: it may be about to write the caller's memory.
void abort(const std::shared_ptr<Comm>& comm) {
  comm->aborted.store(true);
  std::shared_ptr<Control> control;
  {
    const std::lock_guard lock(comm->work_mutex);
    control = comm->control;
  }
  if (control) {
    control->header().join_bell.ring();
    control->header().life_bell.ring();
  }
  give_up_work(*comm);
  if (control && !comm->ready.load()) control->forget_made();  // it will never have all its ranks
  wait_until_nobody_steps(*comm);
  unregister_comm(*comm);
  info(kInit, "comm %p rank %d nranks %d cudaDev %d busId %lx - Abort COMPLETE", static_cast<void*>(comm.get()),
       comm->rank, comm->nranks, comm->device, bus_id(*comm));
}

namespace {

// Waits for what is in flight; with a peer that never comes, for ever, as in NCCL.
class EndJob final : public Job {
 public:
  EndJob(std::shared_ptr<Comm> comm, bool destroys) : comm_(std::move(comm)), destroys_(destroys) {
    const std::lock_guard lock(comm_->issue_mutex);
    last_ = comm_->last;
  }
  host::Step step() override {
    if (over_) return host::Step::done;
    const bool reached = last_.stream == nullptr || last_.stream->completed() >= last_.seq;
    if (!reached && !comm_->aborted.load()) return host::Step::waiting;
    over_ = true;
    if (destroys_) end();
    return host::Step::done;
  }
  host::Bell& bell() override { return api().local_bell(); }
  ncclResult_t result() const override { return ncclSuccess; }

 private:
  void end() {
    {
      const std::lock_guard lock(comm_->issue_mutex);
      comm_->last = {};  // it may keep a stream alive
    }
    last_ = {};
    unregister_comm(*comm_);
    info(kInit, "comm %p rank %d nranks %d cudaDev %d busId %lx - Destroy COMPLETE", static_cast<void*>(comm_.get()),
         comm_->rank, comm_->nranks, comm_->device, bus_id(*comm_));
  }
  const std::shared_ptr<Comm> comm_;
  const bool destroys_;
  host::Point last_;
  bool over_ = false;
};

}  // namespace

std::unique_ptr<Job> begin_end(std::shared_ptr<Comm> comm, bool destroys) {
  return std::make_unique<EndJob>(std::move(comm), destroys);
}

ncclResult_t run_jobs(const std::vector<std::unique_ptr<Job>>& jobs, const std::atomic<bool>* given_up) {
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
    if (given_up != nullptr && given_up->load()) return ncclInternalError;
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
