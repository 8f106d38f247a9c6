// SPDX-License-Identifier: MIT
//
// NCCL's functions for communicators: their beginning, their children, their end, and the questions one may ask.

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "reference/nccl/calls.h"
#include "reference/nccl/checks.h"
#include "reference/nccl/fault.h"
#include "reference/nccl/group.h"
#include "reference/nccl/log.h"

namespace lockstep::nccl {
namespace {

// What a call on a nonblocking communicator answers: how far it is.
ncclResult_t answer(const Comm& comm, ncclResult_t result) {
  if (comm.config.blocking || (result != ncclSuccess && result != ncclInProgress)) return result;
  return static_cast<ncclResult_t>(comm.async_error.load());
}

struct Wish {  // for a communicator
  const char* name = "";
  ncclComm_t* out = nullptr;
  int nranks = 0;
  int rank = 0;
  int ids = 1;
  const ncclUniqueId* id = nullptr;
  const ncclConfig_t* config = nullptr;
  int device = -1;  // the current one
};

ncclResult_t check(const Wish& wish) {
  if (wish.ids <= 0 || wish.ids > wish.nranks) {
    warn("improper usage of ncclCommInitRank: nId = %d, nranks=%d", wish.ids, wish.nranks);
    return ncclInvalidArgument;
  }
  if (const ncclResult_t result = check_pointer("CommInitRank", "newcomm", wish.out); result != ncclSuccess)
    return result;
  if (wish.nranks >= 1 && wish.rank >= 0 && wish.rank < wish.nranks) return ncclSuccess;
  warn("Invalid rank requested : %d/%d", wish.rank, wish.nranks);
  return ncclInvalidArgument;
}

ncclResult_t start(const Wish& wish) {
  if (const ncclResult_t result = cuda_works(); result != ncclSuccess) return result;
  tell_version(wish.rank);
  if (const ncclResult_t result = check(wish); result != ncclSuccess) return result;
  InitRequest request;
  request.name = wish.name;
  request.id = *wish.id;
  request.nranks = wish.nranks;
  request.rank = wish.rank;
  request.device = wish.device >= 0 ? wish.device : api().current_device();
  request.all_on_one_thread = wish.device >= 0;
  if (const ncclResult_t result = read_config(wish.config, {}, request.config); result != ncclSuccess) return result;
  std::shared_ptr<Comm> comm;
  std::unique_ptr<Job> job;
  if (const ncclResult_t result = begin_init(request, comm, job); result != ncclSuccess) return result;
  __atomic_store_n(wish.out, handle_of(*comm), __ATOMIC_RELEASE);  // others may abort it from now on
  const ncclResult_t result = run_or_queue(std::move(job), comm);
  if (result != ncclSuccess && result != ncclInProgress) *wish.out = nullptr;
  return answer(*comm, result);
}

ncclResult_t start_in_group(const Wish& wish) {
  const ncclResult_t result = start(wish);
  return result == ncclInProgress ? result : group_error(result);
}

ncclResult_t check_devices(int ndev, const int* devlist) {
  if (devlist == nullptr) return ncclSuccess;
  std::set<int> seen;
  for (int i = 0; i < ndev; ++i) {
    if (devlist[i] < 0 || devlist[i] >= api().device_count()) {
      warn("Invalid device %d (totalnDev=%d)", devlist[i], api().device_count());
      return ncclInvalidArgument;
    }
    if (!seen.insert(devlist[i]).second) return ncclInvalidUsage;
  }
  return ncclSuccess;
}

// For a child of `parent`, with a configuration of its own or the parent's.
ncclResult_t prepare_child(const Comm& parent, ncclComm_t* newcomm, const ncclConfig_t* config, CommConfig& own) {
  if (const ncclResult_t result = check_ready(parent); result != ncclSuccess) return result;
  *newcomm = nullptr;
  return read_config(config, parent.config, own);
}

ncclResult_t split(ncclComm_t handle, int color, int key, ncclComm_t* newcomm, const ncclConfig_t* config) {
  constexpr const char* kName = "ncclCommSplit";
  std::shared_ptr<Comm> parent;
  CommConfig own;
  if (const ncclResult_t result = look_up(kName, handle, parent); result != ncclSuccess) return result;
  if (const ncclResult_t result = check_pointer(kName, "newcomm", newcomm); result != ncclSuccess) return result;
  if (color < NCCL_SPLIT_NOCOLOR) {
    warn("%s : invalid color %d (a color is NCCL_SPLIT_NOCOLOR or not negative)", kName, color);
    return ncclInvalidArgument;
  }
  const ncclResult_t prepared = prepare_child(*parent, newcomm, config, own);
  if (prepared != ncclSuccess) return prepared;
  if (color == NCCL_SPLIT_NOCOLOR)
    info(kInit, "Rank %d has color with NCCL_SPLIT_NOCOLOR, not creating a new communicator", parent->rank);
  const ncclResult_t result = run_or_queue(begin_split(parent, color, key, own, newcomm), parent);
  return answer(*parent, result);
}

ncclResult_t shrink(ncclComm_t handle, int* excluded, int count, ncclComm_t* newcomm, const ncclConfig_t* config,
                    int flags) {
  constexpr const char* kName = "ncclCommShrink";
  std::shared_ptr<Comm> parent;
  CommConfig own;
  if (const ncclResult_t result = look_up(kName, handle, parent); result != ncclSuccess) return result;
  if ((flags & NCCL_SHRINK_ABORT) != 0) drop_operations(*parent);
  if (const ncclResult_t result = check_pointer(kName, "newcomm", newcomm); result != ncclSuccess) return result;
  if (const ncclResult_t result = check_pointer(kName, "excludeRanksList", excluded); result != ncclSuccess)
    return result;
  if (count <= 0) return ncclInvalidArgument;
  std::sort(excluded, excluded + count);  // the caller's own array, as NCCL does
  if (std::binary_search(excluded, excluded + count, parent->rank)) return ncclInvalidArgument;
  const ncclResult_t prepared = prepare_child(*parent, newcomm, config, own);
  if (prepared != ncclSuccess) return prepared;
  const ncclResult_t result = run_or_queue(begin_shrink(parent, {excluded, excluded + count}, own, newcomm), parent);
  return answer(*parent, result);
}

// The end of a communicator waits for what is in flight. Outside of a group it is this thread that drives it.
ncclResult_t end(const std::shared_ptr<Comm>& comm, bool destroys) {
  if (!in_group() && comm->config.blocking) {
    host::Point last;
    {
      const std::lock_guard lock(comm->issue_mutex);
      last = comm->last;
    }
    api().wait(last);
  }
  return run_or_queue(begin_end(comm, destroys), comm);
}

ncclResult_t finalize(ncclComm_t handle) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("CommFinalize", handle, comm); result != ncclSuccess) return result;
  if (comm->finalized.load()) return ncclInvalidArgument;
  if (const ncclResult_t result = check_ready(*comm); result != ncclSuccess) return result;
  comm->finalized.store(true);
  return answer(*comm, end(comm, false));
}

ncclResult_t destroy(ncclComm_t handle) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("CommDestroy", handle, comm); result != ncclSuccess) return result;
  if (comm->async_error.load() == ncclInProgress || !comm->ready.load()) return check_ready(*comm);
  const ncclResult_t result = end(comm, true);
  return result == ncclInProgress ? ncclSuccess : result;  // there is nobody left to ask how far it is
}

ncclResult_t query(const char* name, const char* what, ncclComm_t handle, int* out, int Comm::*field) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up(name, handle, comm); result != ncclSuccess) return result;
  if (const ncclResult_t result = check_pointer(name, what, out); result != ncclSuccess) return result;
  if (!comm->finalized.load())  // what a finalized communicator was may still be asked
    if (const ncclResult_t result = check_ready(*comm); result != ncclSuccess) return result;
  *out = (*comm).*field;
  return ncclSuccess;
}

}  // namespace

ncclResult_t run(Tag<Fn::CommInitRank>, ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return start_in_group({"ncclCommInitRank", comm, nranks, rank, 1, &id});
}
ncclResult_t run(Tag<Fn::CommInitRankConfig>, ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                 ncclConfig_t* config) {
  return start_in_group({"ncclCommInitRankConfig", comm, nranks, rank, 1, &id, config});
}
// Ranks of NCCL spread their first contact over several ids; the first one is enough here.
ncclResult_t run(Tag<Fn::CommInitRankScalable>, ncclComm_t* comm, int nranks, int rank, int ids, ncclUniqueId* id,
                 ncclConfig_t* config) {
  if (const ncclResult_t result = check_pointer("CommInitRank", "commId", id); result != ncclSuccess)
    return group_error(result);
  return start_in_group({"ncclCommInitRankScalable", comm, nranks, rank, ids, id, config});
}

ncclResult_t run(Tag<Fn::CommInitAll>, ncclComm_t* comms, int ndev, const int* devlist) {
  if (const ncclResult_t result = cuda_works(); result != ncclSuccess) return result;
  if (const ncclResult_t result = check_pointer("CommInitAll", "comms", comms); result != ncclSuccess) return result;
  if (ndev < 0) {
    warn("Invalid device count requested : %d", ndev);
    return ncclInvalidArgument;
  }
  if (const ncclResult_t result = check_devices(ndev, devlist); result != ncclSuccess) return result;
  if (ndev > api().device_count()) {
    warn("Cuda failure 'invalid device ordinal'");
    return ncclUnhandledCudaError;
  }
  ncclUniqueId id;
  if (const ncclResult_t result = make_unique_id(&id); result != ncclSuccess) return result;
  group_start();
  for (int i = 0; i < ndev; ++i) {
    const int device = devlist != nullptr ? devlist[i] : i;
    if (start_in_group({"ncclCommInitAll", comms + i, ndev, i, 1, &id, nullptr, device}) != ncclSuccess) break;
  }
  return group_end();
}

ncclResult_t run(Tag<Fn::CommSplit>, ncclComm_t handle, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  const ncclResult_t result = split(handle, color, key, newcomm, config);
  return result == ncclInProgress ? result : group_error(result);
}

ncclResult_t run(Tag<Fn::CommShrink>, ncclComm_t handle, int* excluded, int count, ncclComm_t* newcomm,
                 ncclConfig_t* config, int flags) {
  const ncclResult_t result = shrink(handle, excluded, count, newcomm, config, flags);
  return result == ncclInProgress ? result : group_error(result);
}

ncclResult_t run(Tag<Fn::CommFinalize>, ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  do_held_back();
  const ncclResult_t result = finalize(handle);
  return result == ncclInProgress ? result : group_error(result);
}

ncclResult_t run(Tag<Fn::CommDestroy>, ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  do_held_back();
  return group_error(destroy(handle));
}

ncclResult_t run(Tag<Fn::CommAbort>, ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("CommAbort", handle, comm); result != ncclSuccess) return result;
  abort(comm);
  return ncclSuccess;
}

// Ends what is in flight, here; the communicator is good for making others of it, and for its end.
ncclResult_t run(Tag<Fn::CommRevoke>, ncclComm_t handle, int flags) {
  if (handle == nullptr) return ncclSuccess;
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("CommRevoke", handle, comm); result != ncclSuccess) return result;
  if (flags != NCCL_REVOKE_DEFAULT || comm->finalized.load()) return ncclInvalidArgument;
  if (const ncclResult_t result = check_ready(*comm); result != ncclSuccess) return result;
  if (comm->revoked.exchange(true)) return ncclInvalidArgument;
  drop_operations(*comm);
  info(kInit, "comm %p rank %d nRanks %d cudaDev %d busId %lx - Revoke COMPLETE, result %d",
       static_cast<void*>(comm.get()), comm->rank, comm->nranks, comm->device, bus_id(*comm), ncclSuccess);
  return ncclSuccess;
}

ncclResult_t run(Tag<Fn::CommGetAsyncError>, ncclComm_t handle, ncclResult_t* error) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("ncclGetAsyncError", handle, comm); result != ncclSuccess) return result;
  if (error == nullptr) return check_pointer("ncclGetAsyncError", "asyncError", error);
  *error = static_cast<ncclResult_t>(comm->async_error.load());
  return ncclSuccess;
}

ncclResult_t run(Tag<Fn::CommCount>, ncclComm_t handle, int* count) {
  return query("CommCount", "count", handle, count, &Comm::nranks);
}
ncclResult_t run(Tag<Fn::CommCuDevice>, ncclComm_t handle, int* device) {
  return query("CommCuDevice", "devid", handle, device, &Comm::device);
}
ncclResult_t run(Tag<Fn::CommUserRank>, ncclComm_t handle, int* rank) {
  return query("CommUserRank", "rank", handle, rank, &Comm::rank);
}

}  // namespace lockstep::nccl
