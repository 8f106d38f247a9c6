// SPDX-License-Identifier: MIT
//
// How ranks meet. Joining is one atomic count; a rank that never comes keeps the others waiting for ever, off the CPU,
// and so do a wrong number of ranks and a rank given twice, as in NCCL.

#include <sys/types.h>
#include <unistd.h>

#include <utility>

#include "interpose/abi/comm_hash.h"
#include "reference/nccl/comm.h"
#include "reference/nccl/log.h"

namespace lockstep::nccl {
namespace {

// Puts this rank on the list; false: it will never be on it, and waits in vain.
bool join(Comm& comm) {
  Header& header = comm.control->header();
  uint32_t agreed = 0;
  const auto mine = static_cast<uint32_t>(comm.nranks);
  if (!header.nranks.compare_exchange_strong(agreed, mine) && agreed != mine) {
    warn("Bootstrap: mismatch in number of ranks: rank %d says %u, another rank said %u", comm.rank, mine, agreed);
    return false;
  }
  if (!comm.control->map_ranks(comm.nranks)) {
    warn("cannot map the memory of a communicator of %d ranks", comm.nranks);
    comm.async_error.store(ncclSystemError);
    return false;
  }
  uint32_t unclaimed = 0;
  if (!comm.self().claimed.compare_exchange_strong(unclaimed, 1)) {
    warn("Bootstrap: rank %d of %d ranks has already checked in", comm.rank, comm.nranks);
    return false;
  }
  comm.self().pid = getpid();
  comm.self().process_start = process_start_ticks();
  comm.self().device = comm.device;
  comm.self().heap = api().heap_address();
  comm.self().cores = Cores::of_this_thread();
  if (header.joined.fetch_add(1) + 1 == mine) header.join_bell.ring();
  return true;
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
  api().ranks_here(comm.nranks, cores.count());
  comm.control->close_when_complete();
  comm.ready.store(true);
}

class InitJob final : public Job {
 public:
  explicit InitJob(std::shared_ptr<Comm> comm) : comm_(std::move(comm)) {}

  host::Step step() override {
    if (over_) return host::Step::done;
    if (!tried_) {
      tried_ = true;
      joined_ = join(*comm_);
      return host::Step::progressed;
    }
    const bool failed = comm_->aborted.load() || comm_->async_error.load() != ncclSuccess;
    if (!failed && !(joined_ && comm_->control->header().joined.load() >= static_cast<uint32_t>(comm_->nranks)))
      return host::Step::waiting;
    over_ = true;
    if (failed)
      unregister_comm(*comm_);
    else
      meet(*comm_);
    return host::Step::done;
  }
  host::Bell& bell() override { return comm_->control->header().join_bell; }
  ncclResult_t result() const override {
    if (comm_->aborted.load()) return ncclInternalError;
    return static_cast<ncclResult_t>(comm_->async_error.load());
  }

 private:
  const std::shared_ptr<Comm> comm_;
  bool tried_ = false;
  bool joined_ = false;
  bool over_ = false;
};

}  // namespace

ncclResult_t begin_init(const ncclUniqueId& id, int nranks, int rank, std::shared_ptr<Comm>& out,
                        std::unique_ptr<Job>& job) {
  auto comm = std::make_shared<Comm>();
  comm->rank = rank;
  comm->nranks = nranks;
  comm->device = api().current_device();
  comm->hash = abi::comm_hash_of_unique_id(&id);
  if (api().heap_address().fd < 0) {
    warn("cannot make this process's shared heap");
    return ncclSystemError;
  }
  const ncclResult_t opened = open_unique_id(id, comm->control);
  if (opened != ncclSuccess) return opened;
  register_comm(comm);
  job = std::make_unique<InitJob>(comm);
  out = std::move(comm);
  return ncclSuccess;
}

}  // namespace lockstep::nccl
