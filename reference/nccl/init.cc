// SPDX-License-Identifier: MIT
//
// How ranks meet. Joining is one atomic count; a rank that never comes keeps the others waiting for ever, off the CPU,
// and so do a wrong number of ranks and a rank given twice, as in NCCL.

#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "interpose/abi/comm_hash.h"
#include "reference/nccl/algorithm.h"
#include "reference/nccl/comm.h"
#include "reference/nccl/fault.h"
#include "reference/nccl/log.h"
#include "reference/nccl/named_id.h"
#include "reference/nccl/settings.h"

namespace lockstep::nccl {
namespace {

enum class Joined { yes, never, failed };

// Puts this rank on the list. `never`: it will not be on it, and waits in vain.
Joined join(Comm& comm) {
  Header& header = comm.control->header();
  uint32_t agreed = 0;
  const auto mine = static_cast<uint32_t>(comm.nranks);
  if (!header.nranks.compare_exchange_strong(agreed, mine) && agreed != mine) {
    warn("Bootstrap Root : mismatch in info from procs, nranks %u vs %u", mine, agreed);
    return Joined::never;
  }
  if (!comm.control->map_ranks(comm.nranks)) {
    warn("cannot map the memory of a communicator of %d ranks", comm.nranks);
    return Joined::failed;
  }
  uint32_t unclaimed = 0;
  if (!comm.self().claimed.compare_exchange_strong(unclaimed, 1)) {
    warn("Bootstrap Root : rank %d of %d ranks has already checked in", comm.rank, comm.nranks);
    return Joined::never;
  }
  comm.self().pid = getpid();
  comm.self().process_start = process_start_ticks();
  comm.self().device = comm.device;
  comm.self().heap = api().heap_address();
  comm.self().cores = Cores::of_this_thread();
  if (header.joined.fetch_add(1) + 1 == mine) header.join_bell.ring();
  return Joined::yes;
}

// NCCL refuses two ranks on one device. Here that is a setting: machines without GPUs have as many as one likes.
bool device_may_be_shared() {
  const char* const rule = setting("LOCKSTEP_HOST_DUPLICATE_DEVICE");
  if (rule == nullptr || *rule == '\0') return true;
  if (std::string_view(rule) == "refuse") return false;
  static std::once_flag said;
  std::call_once(said, [rule] {
    std::fprintf(stderr,
                 "lockstep host runtime: LOCKSTEP_HOST_DUPLICATE_DEVICE is '%s', expected refuse; it is ignored\n",
                 rule);
  });
  return true;
}
bool device_is_shared(Comm& comm) {
  if (device_may_be_shared()) return false;
  for (int a = 0; a < comm.nranks; ++a)
    for (int b = a + 1; b < comm.nranks; ++b)
      if (comm.control->member(a).device == comm.control->member(b).device) {
        warn("Duplicate GPU detected : rank %d and rank %d both on CUDA device %lx", a, b,
             static_cast<long>(comm.control->member(a).device + 1) << 12);
        return true;
      }
  return false;
}

// Everybody is here: what this rank needs to know of its peers.
void meet(Comm& comm) {
  const auto n = static_cast<size_t>(comm.nranks);
  comm.same_process.resize(n);
  comm.all_same_process = true;
  Cores cores = comm.self().cores;
  for (int peer = 0; peer < comm.nranks; ++peer) {
    const Member& other = comm.control->member(peer);
    const bool same = other.pid == comm.self().pid && other.process_start == comm.self().process_start;
    comm.same_process[static_cast<size_t>(peer)] = same;
    comm.all_same_process &= same;
    cores.add(other.cores);
  }
  comm.sent.resize(n);
  comm.received.resize(n);
  comm.peer_heaps.resize(n);
  comm.shrinks_used.resize(n);
  api().ranks_here(comm.nranks, cores.count());
  comm.control->close_when_complete();
  comm.ready.store(true);
}

// In NCCL's shape, `what` included.
void tell(const InitRequest& request, const Comm& comm, const char* what) {
  if (!info_wanted(kInit)) return;
  char origin[128];
  if (request.parent != nullptr)
    std::snprintf(origin, sizeof origin, "parent %p splitCount %d color %d key %d",
                  static_cast<const void*>(request.parent), request.split_count, request.color, request.key);
  else
    std::snprintf(origin, sizeof origin, "commId 0x%llx", static_cast<unsigned long long>(comm.hash));
  info(kInit, "%s comm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %lx %s%s", request.name,
       static_cast<const void*>(&comm), comm.rank, comm.nranks, comm.device, comm.device, bus_id(comm), origin, what);
}

class InitJob final : public Job {
 public:
  InitJob(std::shared_ptr<Comm> comm, const InitRequest& request) : comm_(std::move(comm)), request_(request) {
    if (is_named(request.id)) meeting_.emplace(request.id, request.rank);
  }

  host::Step step() override {
    if (over_) return host::Step::done;
    if (comm_->aborted.load()) return end(ncclInternalError);
    if (!comm_->control) return open();
    if (!tried_) {
      tried_ = true;
      joined_ = join(*comm_);
      return joined_ == Joined::failed ? end(ncclSystemError) : host::Step::progressed;
    }
    if (joined_ == Joined::never || comm_->control->header().joined.load() < static_cast<uint32_t>(comm_->nranks))
      return host::Step::waiting;
    if (device_is_shared(*comm_)) return end(ncclInvalidUsage);
    meet(*comm_);
    return end(ncclSuccess);
  }
  host::Bell& bell() override { return comm_->control ? comm_->control->header().join_bell : api().local_bell(); }
  ncclResult_t result() const override { return result_; }

 private:
  host::Step open() {
    std::shared_ptr<Control> control;
    const ncclResult_t result = meeting_->open(control);
    if (result == ncclInProgress) return host::Step::waiting;
    if (result != ncclSuccess) return end(result);
    const std::lock_guard lock(comm_->work_mutex);  // abort() may look at it
    comm_->control = std::move(control);
    return host::Step::progressed;
  }
  // The handle of a nonblocking communicator that failed stays good for asking why, and for aborting it.
  host::Step end(ncclResult_t result) {
    over_ = true;
    result_ = result;
    meeting_.reset();
    if (result == ncclSuccess)
      tell(request_, *comm_, " - Init COMPLETE");
    else if (comm_->config.blocking)
      unregister_comm(*comm_);
    return host::Step::done;
  }

  const std::shared_ptr<Comm> comm_;
  const InitRequest request_;
  std::optional<NamedMeeting> meeting_;
  bool tried_ = false;
  Joined joined_ = Joined::never;
  bool over_ = false;
  ncclResult_t result_ = ncclSuccess;
};

// RANK or what launchers call it; without, the rank in this thread's first communicator.
int world_rank_of(int rank, bool all_on_one_thread) {
  if (all_on_one_thread) return rank;
  for (const char* name : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const int world = int_setting(name, -1); world >= 0) return world;
  thread_local int first = -1;
  if (first < 0) first = rank;
  return first;
}

}  // namespace

ncclResult_t begin_init(const InitRequest& request, std::shared_ptr<Comm>& out, std::unique_ptr<Job>& job) {
  auto comm = std::make_shared<Comm>();
  comm->rank = request.rank;
  comm->nranks = request.nranks;
  comm->device = request.device;
  comm->config = request.config;
  const Comm* const parent = request.parent;
  comm->hash = parent != nullptr ? abi::comm_hash_of_child(parent->hash, request.split_count, request.color)
                                 : abi::comm_hash_of_unique_id(&request.id);
  comm->world_rank = parent != nullptr ? parent->world_rank : world_rank_of(request.rank, request.all_on_one_thread);
  if (const ncclResult_t result = check_algorithm_settings(); result != ncclSuccess) return result;
  if (const ncclResult_t result = check_fault_setting(); result != ncclSuccess) return result;
  if (api().heap_address().fd < 0) {
    warn("cannot make this process's shared heap");
    return ncclSystemError;
  }
  if (!is_named(request.id))
    if (const ncclResult_t result = open_unique_id(request.id, comm->control); result != ncclSuccess) return result;
  register_comm(comm);
  tell(request, *comm, request.parent != nullptr ? "- Init START" : " - Init START");  // a blank is missing there
  job = std::make_unique<InitJob>(comm, request);
  out = std::move(comm);
  return ncclSuccess;
}

}  // namespace lockstep::nccl
