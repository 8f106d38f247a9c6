// SPDX-License-Identifier: MIT
//
// See checks.h.

#include "reference/nccl/checks.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "cuda_runtime_api.h"
#include "reference/cuda/runtime.h"
#include "reference/nccl/settings.h"

namespace lockstep::nccl {
namespace {

bool has(abi::Fn fn, abi::ArgRole role) { return abi::has_role(fn, role); }

bool reads(const Comm& comm, const Call& call) {
  return call.fn != abi::Fn::Recv && (call.fn != abi::Fn::Broadcast || comm.rank == call.root);
}
bool writes(const Comm& comm, const Call& call) {
  return call.fn != abi::Fn::Send && (call.fn != abi::Fn::Reduce || comm.rank == call.root);
}

// Asks the kernel, which answers where a look would end the process. Memory from malloc or numpy is the rare case, and
// is copied anyway.
bool is_mapped(const void* pointer) {
  if (api().heap_offset(pointer)) return true;
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec there{const_cast<void*>(pointer), 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 || errno != EFAULT;
}
bool found_no_memory(const Call& call, const char* what, const void* pointer) {
  if (is_mapped(pointer)) return false;
  char text[96];
  std::snprintf(text, sizeof text, "nccl%s: %s %p", abi::find_function(call.fn)->name, what, pointer);
  lockstep_host_illegal_address(text);
  return true;
}

// NCCL_CHECK_POINTERS=1: buffers must be memory that CUDA knows.
ncclResult_t check_buffer(const char* name, const char* what, const void* pointer) {
  if (api().heap_offset(pointer)) return ncclSuccess;
  warn("%s : %s %p is not a valid pointer", name, what, pointer);
  return ncclInvalidArgument;
}
ncclResult_t check_buffers(const char* name, const Comm& comm, const Call& call) {
  static const bool wanted = int_setting("NCCL_CHECK_POINTERS", 0) == 1;
  if (!wanted) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  if (reads(comm, call)) result = check_buffer(name, "sendbuff", call.send);
  if (result == ncclSuccess && writes(comm, call)) result = check_buffer(name, "recvbuff", call.recv);
  return result;
}

}  // namespace

bool runs_into_nothing(const Comm& comm, const Call& call) {
  if (call.bytes() == 0 || (comm.nranks == 1 && call.send == call.recv)) return false;
  return (reads(comm, call) && found_no_memory(call, "sendbuff", call.send)) ||
         (writes(comm, call) && found_no_memory(call, "recvbuff", call.recv));
}

ncclResult_t cuda_ready() {
  if (api().ready() == cudaSuccess) return ncclSuccess;
  warn("Cuda failure 'initialization error': this process was forked from one that had used CUDA");
  return ncclUnhandledCudaError;
}

ncclResult_t cuda_works() {
  if (const ncclResult_t result = cuda_ready(); result != ncclSuccess) return result;
  const cudaError_t error = api().lasting_error();
  if (error == cudaSuccess) return ncclSuccess;
  const bool address = error == cudaErrorIllegalAddress;
  warn("Cuda failure %d '%s'", static_cast<int>(error),
       address ? "an illegal memory access was encountered" : "operation not supported");
  return ncclUnhandledCudaError;
}

ncclResult_t check_pointer(const char* name, const char* what, const void* pointer) {
  if (pointer != nullptr) return ncclSuccess;
  warn("%s : %s argument is NULL", name, what);
  return ncclInvalidArgument;
}

ncclResult_t look_up(const char* name, ncclComm_t handle, std::shared_ptr<Comm>& comm) {
  if (const ncclResult_t result = check_pointer(name, "comm", handle); result != ncclSuccess) return result;
  if (const ncclResult_t result = cuda_ready(); result != ncclSuccess) return result;
  comm = find_comm(handle);
  if (comm) return ncclSuccess;
  warn("Error: corrupted comm object detected");
  return ncclInvalidArgument;
}

ncclResult_t check_ready(const Comm& comm) {
  const auto error = static_cast<ncclResult_t>(comm.async_error.load());
  if (error == ncclSuccess && comm.ready.load() && !comm.finalized.load()) return ncclSuccess;
  warn("Attempt to use communicator before the previous operation returned ncclSuccess");
  return error == ncclSuccess || error == ncclInProgress ? ncclInvalidArgument : error;
}

ncclResult_t look_up_ready(const char* name, ncclComm_t handle, std::shared_ptr<Comm>& comm) {
  const ncclResult_t result = look_up(name, handle, comm);
  return result == ncclSuccess ? check_ready(*comm) : result;
}

ncclResult_t check_arguments(const char* name, Comm& comm, Call& call) {
  if (const ncclResult_t result = check_buffers(name, comm, call); result != ncclSuccess) return result;
  if ((has(call.fn, abi::ArgRole::root) || has(call.fn, abi::ArgRole::peer)) &&
      (call.root < 0 || call.root >= comm.nranks)) {
    warn("%s : invalid root %d (root should be in the 0..%d range)", name, call.root, comm.nranks);
    return ncclInvalidArgument;
  }
  if (call.dtype < 0 || call.dtype >= ncclNumTypes) {
    warn("%s : invalid type %d", name, call.dtype);
    return ncclInvalidArgument;
  }
  if (!has(call.fn, abi::ArgRole::redop)) return ncclSuccess;
  if (call.op < 0) {
    warn("%s : invalid reduction operation %d", name, call.op);
    return ncclInvalidArgument;
  }
  UserOp user;
  if (call.op >= ncclNumOps && !comm.user_ops.find(&comm, call.op, user)) {
    warn("%s : reduction operation %d unknown to this communicator", name, call.op);
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

ncclResult_t check_operator(Comm& comm, Call& call) {
  if (!has(call.fn, abi::ArgRole::redop)) return ncclSuccess;
  constexpr Arithmetic kBuiltin[] = {Arithmetic::sum, Arithmetic::prod, Arithmetic::max, Arithmetic::min};
  if (call.op < ncclAvg) {
    call.arithmetic = kBuiltin[call.op];
    return ncclSuccess;
  }
  call.arithmetic = Arithmetic::scaled_sum;
  if (call.op == ncclAvg) {
    if (is_integer(call.dtype))
      call.arithmetic = Arithmetic::divided_sum;
    else
      call.scale = reciprocal_bits(call.dtype, comm.nranks);
    return ncclSuccess;
  }
  UserOp user;
  comm.user_ops.find(&comm, call.op, user);
  if (user.dtype != call.dtype) {
    warn("Data type supplied to user-created ncclRedOp_t does not match type given to reduction operation");
    return ncclInvalidArgument;
  }
  call.scale = user.scale;  // taken now: the operator may be destroyed before the operation runs
  call.scale_at = user.scale_at;
  return ncclSuccess;
}

}  // namespace lockstep::nccl
