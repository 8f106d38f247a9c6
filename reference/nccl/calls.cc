// SPDX-License-Identifier: MIT
//
// NCCL's functions that belong to no communicator, and its operations: argument checks in NCCL's order and words, then
// the work. See calls.h. Those for communicators are in comm_calls.cc, those for memory in memory_calls.cc.

#include "reference/nccl/calls.h"

#include "reference/nccl/checks.h"
#include "reference/nccl/fault.h"
#include "reference/nccl/group.h"
#include "reference/nccl/named_id.h"
#include "reference/nccl/settings.h"

namespace lockstep::nccl {
namespace {

ncclResult_t look_up_for(const char* name, ncclComm_t handle, std::shared_ptr<Comm>& comm) {
  if (const ncclResult_t result = look_up(name, handle, comm); result != ncclSuccess) return result;
  if (!comm->revoked.load()) return check_ready(*comm);
  warn("%s: communicator was revoked", name);
  return ncclInvalidUsage;
}

// One line a call. (NCCL has the buffer of a send where others have the one they receive into.)
void tell(const char* name, const Comm& comm, const Call& call) {
  const bool sends = call.fn == Fn::Send;
  info(kColl,
       "%s: opCount %lx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d] stream %p",
       name, static_cast<unsigned long>(comm.calls.load()), sends ? nullptr : call.send, sends ? call.send : call.recv,
       call.count, call.dtype, call.op, call.root, static_cast<const void*>(&comm), comm.nranks,
       static_cast<void*>(call.stream));
}

// The arguments are good, and the call is on record. What was made to go wrong is done to it, or said in `faulted`.
ncclResult_t admit(const char* name, ncclComm_t handle, std::shared_ptr<Comm>& comm, Call& call, Faulted& faulted) {
  if (const ncclResult_t result = look_up_for(name, handle, comm); result != ncclSuccess) return result;
  faulted = apply_faults(*comm, call);
  if (faulted.result != ncclSuccess) return faulted.result;
  if (const ncclResult_t result = check_arguments(name, *comm, call); result != ncclSuccess) return result;
  if (info_wanted(kColl)) tell(name, *comm, call);
  comm->calls.fetch_add(1);
  return ncclSuccess;
}

// What a call on a nonblocking communicator answers; a failed one fails the communicator.
ncclResult_t answer(const std::shared_ptr<Comm>& comm, ncclResult_t result) {
  if (!comm || comm->config.blocking) return result;
  int expected = ncclSuccess;
  if (result != ncclSuccess && result != ncclInProgress) comm->async_error.compare_exchange_strong(expected, result);
  return result == ncclSuccess || result == ncclInProgress ? static_cast<ncclResult_t>(comm->async_error.load())
                                                           : result;
}

// Does the call, unless it was made to be skipped or to be late. `late` is a copy of `act` that may outlive the caller,
// made only where it is needed.
template <class Act, class Late>
ncclResult_t carry_out(const Faulted& faulted, Act act, Late late) {
  if (faulted.skip) return ncclSuccess;
  if (faulted.hold) {
    hold_back(late());
    return ncclSuccess;
  }
  const ncclResult_t result = act();
  do_held_back();
  return result;
}

ncclResult_t enqueue(ncclComm_t handle, Call call) {
  const char* const name = abi::find_function(call.fn)->name;
  std::shared_ptr<Comm> comm;
  Faulted faulted;
  ncclResult_t result = admit(name, handle, comm, call, faulted);
  const bool message = call.fn == Fn::Send || call.fn == Fn::Recv;
  if (result == ncclSuccess && call.count == 0 && !message) return result;  // takes no part in matching, as in NCCL
  if (result == ncclSuccess) result = check_operator(*comm, call);
  if (result == ncclSuccess)
    result = carry_out(
        faulted, [&] { return issue(comm, std::move(call)); }, [&] { return [comm, call] { issue(comm, call); }; });
  if (result != ncclSuccess && result != ncclInProgress) group_error(result);
  return answer(comm, result);
}

// All-to-all, gather and scatter are sends and receives, to oneself too, and match other ranks' in the same order.
class AsMessages {
 public:
  AsMessages(Fn fn, const void* send, void* recv, size_t count, ncclDataType_t dtype, int root, ncclComm_t handle,
             cudaStream_t stream)
      : handle_(handle) {
    whole_.fn = fn;
    whole_.send = send;
    whole_.recv = recv;
    whole_.count = count;
    whole_.dtype = dtype;
    whole_.root = root;
    whole_.stream = stream;
  }

  ncclResult_t run() {
    const char* const name = abi::find_function(whole_.fn)->name;
    Faulted faulted;
    if (const ncclResult_t result = admit(name, handle_, comm_, whole_, faulted); result != ncclSuccess)
      return answer(comm_, group_error(result));
    if (whole_.count == 0) return ncclSuccess;
    return answer(comm_, carry_out(
                             faulted, [&] { return issue_all(); },
                             [&] { return [self = *this]() mutable { self.issue_all(); }; }));
  }

 private:
  ncclResult_t issue_all() {
    group_start();
    for (int peer = 0; peer < comm_->nranks; ++peer) {
      const bool sends = whole_.fn == Fn::AlltoAll || (whole_.fn == Fn::Gather ? peer == whole_.root : at_root());
      const bool receives = whole_.fn == Fn::AlltoAll || (whole_.fn == Fn::Gather ? at_root() : peer == whole_.root);
      if (sends) message(Fn::Send, peer, whole_.fn == Fn::Gather ? 0 : peer);
      if (receives) message(Fn::Recv, peer, whole_.fn == Fn::Scatter ? 0 : peer);
    }
    return group_end();
  }
  bool at_root() const { return comm_->rank == whole_.root; }
  void message(Fn fn, int peer, int block) {
    Call call = whole_;
    call.fn = fn;
    call.root = peer;
    const size_t offset = whole_.bytes() * static_cast<size_t>(block);
    call.send = static_cast<const std::byte*>(whole_.send) + offset;
    call.recv = static_cast<std::byte*>(whole_.recv) + offset;
    if (whole_.corrupt >= 0) {
      const auto element = static_cast<size_t>(whole_.corrupt);
      const bool here = element / whole_.count == static_cast<size_t>(block);
      call.corrupt = here ? static_cast<int64_t>(element % whole_.count) : -1;
    }
    group_error(issue(comm_, call));
  }

  Call whole_;
  const ncclComm_t handle_;
  std::shared_ptr<Comm> comm_;
};

}  // namespace

// --- library
// -------------------------------------------------------------------------------------------------------------

ncclResult_t run(Tag<Fn::GetVersion>, int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = kVersion;
  return ncclSuccess;
}

ncclResult_t run(Tag<Fn::GetUniqueId>, ncclUniqueId* id) {
  if (const ncclResult_t result = check_pointer("GetUniqueId", "out", id); result != ncclSuccess) return result;
  if (const char* name = setting("NCCL_COMM_ID")) return make_named_id(name, id);
  return make_unique_id(id);
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
void run(Tag<Fn::ResetDebugInit>) { reset_log(); }

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
ncclResult_t run(Tag<Fn::GroupEnd>) {
  do_held_back();
  return group_end();
}
ncclResult_t run(Tag<Fn::GroupSimulateEnd>, ncclSimInfo_t* sim) {
  do_held_back();
  return group_simulate_end(sim);
}

}  // namespace lockstep::nccl
