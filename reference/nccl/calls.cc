// SPDX-License-Identifier: MIT
//
// NCCL's functions: argument checks in NCCL's order and words, then the work. See calls.h.

#include "reference/nccl/calls.h"

#include <set>
#include <utility>
#include <vector>

#include "reference/nccl/comm.h"
#include "reference/nccl/group.h"
#include "reference/nccl/reduce.h"

namespace lockstep::nccl {
namespace {

constexpr int kVersion = 22809;  // the release whose behaviour this follows

ncclResult_t cuda_ready() {
  if (api().ready() == cudaSuccess) return ncclSuccess;
  warn("Cuda failure 'initialization error': this process was forked from one that had used CUDA");
  return ncclUnhandledCudaError;
}

ncclResult_t look_up(const char* name, ncclComm_t handle, std::shared_ptr<Comm>& comm) {
  if (handle == nullptr) {
    warn("%s : comm argument is NULL", name);
    return ncclInvalidArgument;
  }
  if (const ncclResult_t result = cuda_ready(); result != ncclSuccess) return result;
  comm = find_comm(handle);
  if (comm) return ncclSuccess;
  warn("Error: corrupted comm object detected");
  return ncclInvalidArgument;
}

// A communicator that may be used: all its ranks are there, and it was not finalized.
ncclResult_t look_up_ready(const char* name, ncclComm_t handle, std::shared_ptr<Comm>& comm) {
  if (const ncclResult_t result = look_up(name, handle, comm); result != ncclSuccess) return result;
  if (comm->ready.load() && !comm->finalized.load()) return ncclSuccess;
  warn("Attempt to use communicator before the previous operation returned ncclSuccess");
  return ncclInvalidArgument;
}

bool has_root(Fn fn) { return abi::has_role(fn, abi::ArgRole::root) || abi::has_role(fn, abi::ArgRole::peer); }

ncclResult_t check_arguments(const char* name, const Comm& comm, const Call& call) {
  if (has_root(call.fn) && (call.root < 0 || call.root >= comm.nranks)) {
    warn("%s : invalid root %d (root should be in the 0..%d range)", name, call.root, comm.nranks);
    return ncclInvalidArgument;
  }
  if (call.dtype < 0 || call.dtype >= ncclNumTypes) {
    warn("%s : invalid type %d", name, call.dtype);
    return ncclInvalidArgument;
  }
  if (!abi::has_role(call.fn, abi::ArgRole::redop)) return ncclSuccess;
  if (call.op < 0) {
    warn("%s : invalid reduction operation %d", name, call.op);
    return ncclInvalidArgument;
  }
  if (call.op >= ncclNumOps) {
    warn("%s : reduction operation %d unknown to this communicator", name, call.op);
    return ncclInvalidArgument;
  }
  if (can_reduce(call.dtype)) return ncclSuccess;
  warn_loudly("%s : reductions of %s are not in the host runtime yet", name, abi::dtype_name(call.dtype));
  return ncclInvalidUsage;
}

ncclResult_t enqueue(ncclComm_t handle, const Call& call) {
  const char* const name = abi::find_function(call.fn)->name;
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready(name, handle, comm); result != ncclSuccess) return group_error(result);
  if (const ncclResult_t result = check_arguments(name, *comm, call); result != ncclSuccess) return group_error(result);
  const bool message = call.fn == Fn::Send || call.fn == Fn::Recv;
  if (call.count == 0 && !message) return ncclSuccess;  // takes no part in matching, as in NCCL
  return group_error(issue(comm, call));
}

// All-to-all, gather and scatter are sends and receives, to oneself too, and match other ranks' in the same order.
class AsMessages {
 public:
  AsMessages(Fn fn, const void* send, void* recv, size_t count, ncclDataType_t dtype, int root, ncclComm_t handle,
             cudaStream_t stream)
      : whole_{fn, send, recv, count, dtype, ncclSum, root, stream}, handle_(handle) {}

  ncclResult_t run() {
    const char* const name = abi::find_function(whole_.fn)->name;
    if (const ncclResult_t result = look_up_ready(name, handle_, comm_); result != ncclSuccess)
      return group_error(result);
    if (const ncclResult_t result = check_arguments(name, *comm_, whole_); result != ncclSuccess)
      return group_error(result);
    if (whole_.count == 0) return ncclSuccess;
    group_start();
    for (int peer = 0; peer < comm_->nranks; ++peer) {
      const bool sends = whole_.fn == Fn::AlltoAll || (whole_.fn == Fn::Gather ? peer == whole_.root : at_root());
      const bool receives = whole_.fn == Fn::AlltoAll || (whole_.fn == Fn::Gather ? at_root() : peer == whole_.root);
      if (sends) message(Fn::Send, peer, whole_.fn == Fn::Gather ? 0 : peer);
      if (receives) message(Fn::Recv, peer, whole_.fn == Fn::Scatter ? 0 : peer);
    }
    return group_end();
  }

 private:
  bool at_root() const { return comm_->rank == whole_.root; }
  void message(Fn fn, int peer, int block) {
    Call call = whole_;
    call.fn = fn;
    call.root = peer;
    const size_t offset = whole_.bytes() * static_cast<size_t>(block);
    call.send = static_cast<const std::byte*>(whole_.send) + offset;
    call.recv = static_cast<std::byte*>(whole_.recv) + offset;
    group_error(issue(comm_, call));
  }

  const Call whole_;
  const ncclComm_t handle_;
  std::shared_ptr<Comm> comm_;
};

ncclResult_t start_init(const char* name, ncclComm_t* out, int nranks, const ncclUniqueId& id, int rank) {
  if (const ncclResult_t result = cuda_ready(); result != ncclSuccess) return group_error(result);
  if (out == nullptr) {
    warn("%s : comm argument is NULL", name);
    return group_error(ncclInvalidArgument);
  }
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    warn("Invalid rank requested : %d/%d", rank, nranks);
    return group_error(ncclInvalidArgument);
  }
  std::shared_ptr<Comm> comm;
  std::unique_ptr<Job> job;
  if (const ncclResult_t result = begin_init(id, nranks, rank, comm, job); result != ncclSuccess)
    return group_error(result);
  *out = handle_of(*comm);
  const ncclResult_t result = run_or_queue(std::move(job));
  if (result != ncclSuccess) *out = nullptr;
  return result;
}

// config may come from any version of the header; see interpose/abi/nccl.h.
ncclResult_t check_config(const char* name, const ncclConfig_t* config) {
  if (config == nullptr || config->magic == NCCL_API_MAGIC) return ncclSuccess;
  warn("%s : ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER", name);
  return ncclInvalidArgument;
}

}  // namespace

// --- library
// -------------------------------------------------------------------------------------------------------------

ncclResult_t run(Tag<Fn::GetVersion>, int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = kVersion;
  return ncclSuccess;
}

ncclResult_t run(Tag<Fn::GetUniqueId>, ncclUniqueId* id) {
  if (id != nullptr) return make_unique_id(id);
  warn("GetUniqueId : uniqueId argument is NULL");
  return ncclInvalidArgument;
}

const char* run(Tag<Fn::GetErrorString>, ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
const char* run(Tag<Fn::GetLastError>, ncclComm_t) { return last_warning(); }
void run(Tag<Fn::ResetDebugInit>) {}

// --- communicators
// ---------------------------------------------------------------------------------------------------------

ncclResult_t run(Tag<Fn::CommInitRank>, ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return start_init("CommInitRank", comm, nranks, id, rank);
}
ncclResult_t run(Tag<Fn::CommInitRankConfig>, ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                 ncclConfig_t* config) {
  if (const ncclResult_t result = check_config("CommInitRankConfig", config); result != ncclSuccess)
    return group_error(result);
  return start_init("CommInitRankConfig", comm, nranks, id, rank);
}

ncclResult_t run(Tag<Fn::CommInitAll>, ncclComm_t* comms, int ndev, const int* devlist) {
  if (const ncclResult_t result = cuda_ready(); result != ncclSuccess) return group_error(result);
  if (comms == nullptr || ndev < 1) {
    warn("CommInitAll : invalid argument: comms %p, %d devices", static_cast<void*>(comms), ndev);
    return group_error(ncclInvalidArgument);
  }
  std::set<int> seen;
  for (int i = 0; i < ndev; ++i) {
    const int device = devlist != nullptr ? devlist[i] : i;
    if (device < 0 || device >= api().device_count()) {
      warn("CommInitAll : invalid device %d", device);
      return group_error(ncclInvalidArgument);
    }
    if (!seen.insert(device).second) return group_error(ncclInvalidUsage);
  }
  ncclUniqueId id;
  if (const ncclResult_t result = make_unique_id(&id); result != ncclSuccess) return group_error(result);
  group_start();
  for (int i = 0; i < ndev; ++i) {
    std::shared_ptr<Comm> comm;
    std::unique_ptr<Job> job;
    if (group_error(begin_init(id, ndev, i, comm, job)) != ncclSuccess) break;
    comm->device = devlist != nullptr ? devlist[i] : i;
    comms[i] = handle_of(*comm);
    run_or_queue(std::move(job));
  }
  return group_end();
}

ncclResult_t run(Tag<Fn::CommSplit>, ncclComm_t handle, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready("CommSplit", handle, comm); result != ncclSuccess)
    return group_error(result);
  if (newcomm == nullptr || color < NCCL_SPLIT_NOCOLOR) {
    warn("CommSplit : invalid color %d, or no place for the new communicator", color);
    return group_error(ncclInvalidArgument);
  }
  if (const ncclResult_t result = check_config("CommSplit", config); result != ncclSuccess) return group_error(result);
  *newcomm = nullptr;
  return run_or_queue(begin_split(std::move(comm), color, key, newcomm));
}

ncclResult_t run(Tag<Fn::CommFinalize>, ncclComm_t handle) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready("CommFinalize", handle, comm); result != ncclSuccess) return result;
  comm->finalized.store(true);
  host::Point last;
  {
    const std::lock_guard lock(comm->issue_mutex);
    last = comm->last;
  }
  api().wait(last);
  return ncclSuccess;
}

ncclResult_t run(Tag<Fn::CommDestroy>, ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("CommDestroy", handle, comm); result != ncclSuccess) return result;
  return destroy(comm);
}

ncclResult_t run(Tag<Fn::CommAbort>, ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("CommAbort", handle, comm); result != ncclSuccess) return result;
  abort(comm);
  return ncclSuccess;
}

ncclResult_t run(Tag<Fn::CommGetAsyncError>, ncclComm_t handle, ncclResult_t* error) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("CommGetAsyncError", handle, comm); result != ncclSuccess) return result;
  if (error == nullptr) return ncclInvalidArgument;
  *error = static_cast<ncclResult_t>(comm->async_error.load());
  return ncclSuccess;
}

ncclResult_t run(Tag<Fn::CommCount>, ncclComm_t handle, int* count) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready("CommCount", handle, comm); result != ncclSuccess) return result;
  if (count == nullptr) return ncclInvalidArgument;
  *count = comm->nranks;
  return ncclSuccess;
}
ncclResult_t run(Tag<Fn::CommCuDevice>, ncclComm_t handle, int* device) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready("CommCuDevice", handle, comm); result != ncclSuccess) return result;
  if (device == nullptr) return ncclInvalidArgument;
  *device = comm->device;
  return ncclSuccess;
}
ncclResult_t run(Tag<Fn::CommUserRank>, ncclComm_t handle, int* rank) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready("CommUserRank", handle, comm); result != ncclSuccess) return result;
  if (rank == nullptr) return ncclInvalidArgument;
  *rank = comm->rank;
  return ncclSuccess;
}

// --- memory
// ----------------------------------------------------------------------------------------------------------------

ncclResult_t run(Tag<Fn::MemAlloc>, void** ptr, size_t size) {
  if (const ncclResult_t result = cuda_ready(); result != ncclSuccess) return result;
  if (ptr == nullptr || size == 0) return ncclInvalidArgument;
  *ptr = api().allocate(size, host::Memory::device, api().current_device());
  if (*ptr != nullptr) return ncclSuccess;
  warn("Cuda failure 'out of memory'");
  return ncclUnhandledCudaError;
}
ncclResult_t run(Tag<Fn::MemFree>, void* ptr) {
  if (const ncclResult_t result = cuda_ready(); result != ncclSuccess) return result;
  if (ptr == nullptr || api().free(ptr)) return ncclSuccess;
  warn("Cuda failure 'invalid argument'");
  return ncclUnhandledCudaError;
}
// All CUDA memory can be read by peers anyway; there is nothing to register.
ncclResult_t run(Tag<Fn::CommRegister>, ncclComm_t handle, void* buff, size_t, void** out) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready("CommRegister", handle, comm); result != ncclSuccess) return result;
  if (out == nullptr) return ncclInvalidArgument;
  *out = buff;
  return ncclSuccess;
}
ncclResult_t run(Tag<Fn::CommDeregister>, ncclComm_t handle, void*) {
  std::shared_ptr<Comm> comm;
  return look_up("CommDeregister", handle, comm);
}

// --- operations
// --------------------------------------------------------------------------------------------------------------

ncclResult_t run(Tag<Fn::AllReduce>, const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                 ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, {Fn::AllReduce, send, recv, count, dtype, op, 0, stream});
}
ncclResult_t run(Tag<Fn::Reduce>, const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                 int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, {Fn::Reduce, send, recv, count, dtype, op, root, stream});
}
ncclResult_t run(Tag<Fn::Broadcast>, const void* send, void* recv, size_t count, ncclDataType_t dtype, int root,
                 ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, {Fn::Broadcast, send, recv, count, dtype, ncclSum, root, stream});
}
ncclResult_t run(Tag<Fn::Bcast>, void* buff, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                 cudaStream_t stream) {
  return enqueue(comm, {Fn::Broadcast, buff, buff, count, dtype, ncclSum, root, stream});
}
ncclResult_t run(Tag<Fn::AllGather>, const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                 cudaStream_t stream) {
  return enqueue(comm, {Fn::AllGather, send, recv, count, dtype, ncclSum, 0, stream});
}
ncclResult_t run(Tag<Fn::ReduceScatter>, const void* send, void* recv, size_t count, ncclDataType_t dtype,
                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, {Fn::ReduceScatter, send, recv, count, dtype, op, 0, stream});
}
ncclResult_t run(Tag<Fn::AlltoAll>, const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                 cudaStream_t stream) {
  return AsMessages(Fn::AlltoAll, send, recv, count, dtype, 0, comm, stream).run();
}
ncclResult_t run(Tag<Fn::Gather>, const void* send, void* recv, size_t count, ncclDataType_t dtype, int root,
                 ncclComm_t comm, cudaStream_t stream) {
  return AsMessages(Fn::Gather, send, recv, count, dtype, root, comm, stream).run();
}
ncclResult_t run(Tag<Fn::Scatter>, const void* send, void* recv, size_t count, ncclDataType_t dtype, int root,
                 ncclComm_t comm, cudaStream_t stream) {
  return AsMessages(Fn::Scatter, send, recv, count, dtype, root, comm, stream).run();
}
ncclResult_t run(Tag<Fn::Send>, const void* send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                 cudaStream_t stream) {
  return enqueue(comm, {Fn::Send, send, nullptr, count, dtype, ncclSum, peer, stream});
}
ncclResult_t run(Tag<Fn::Recv>, void* recv, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                 cudaStream_t stream) {
  return enqueue(comm, {Fn::Recv, nullptr, recv, count, dtype, ncclSum, peer, stream});
}

ncclResult_t run(Tag<Fn::GroupStart>) {
  group_start();
  return ncclSuccess;
}
ncclResult_t run(Tag<Fn::GroupEnd>) { return group_end(); }

}  // namespace lockstep::nccl
