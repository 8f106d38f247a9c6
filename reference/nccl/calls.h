// SPDX-License-Identifier: MIT
//
// What stands behind each exported function: an overload of run() for its tag. A function without one is newer
// than the release this follows, and is answered by the template at the end.

#pragma once

#include <type_traits>

#include "interpose/abi/functions.h"
#include "interpose/abi/nccl.h"
#include "reference/nccl/log.h"

namespace lockstep::nccl {

template <abi::Fn F>
struct Tag {};
using abi::Fn;

inline constexpr int kVersion = 22809;  // the release whose behaviour this follows

// library
ncclResult_t run(Tag<Fn::GetVersion>, int* version);
ncclResult_t run(Tag<Fn::GetUniqueId>, ncclUniqueId* id);
const char* run(Tag<Fn::GetErrorString>, ncclResult_t result);
const char* run(Tag<Fn::GetLastError>, ncclComm_t comm);
void run(Tag<Fn::ResetDebugInit>);

// communicators
ncclResult_t run(Tag<Fn::CommInitRank>, ncclComm_t* comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t run(Tag<Fn::CommInitRankConfig>, ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                 ncclConfig_t* config);
ncclResult_t run(Tag<Fn::CommInitAll>, ncclComm_t* comms, int ndev, const int* devlist);
ncclResult_t run(Tag<Fn::CommSplit>, ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config);
ncclResult_t run(Tag<Fn::CommInitRankScalable>, ncclComm_t* comm, int nranks, int rank, int ids, ncclUniqueId* id,
                 ncclConfig_t* config);
ncclResult_t run(Tag<Fn::CommShrink>, ncclComm_t comm, int* excluded, int count, ncclComm_t* newcomm,
                 ncclConfig_t* config, int flags);
ncclResult_t run(Tag<Fn::CommRevoke>, ncclComm_t comm, int flags);
ncclResult_t run(Tag<Fn::CommFinalize>, ncclComm_t comm);
ncclResult_t run(Tag<Fn::CommDestroy>, ncclComm_t comm);
ncclResult_t run(Tag<Fn::CommAbort>, ncclComm_t comm);
ncclResult_t run(Tag<Fn::CommGetAsyncError>, ncclComm_t comm, ncclResult_t* error);
ncclResult_t run(Tag<Fn::CommCount>, ncclComm_t comm, int* count);
ncclResult_t run(Tag<Fn::CommCuDevice>, ncclComm_t comm, int* device);
ncclResult_t run(Tag<Fn::CommUserRank>, ncclComm_t comm, int* rank);

// memory
ncclResult_t run(Tag<Fn::MemAlloc>, void** ptr, size_t size);
ncclResult_t run(Tag<Fn::MemFree>, void* ptr);
ncclResult_t run(Tag<Fn::CommRegister>, ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t run(Tag<Fn::CommDeregister>, ncclComm_t comm, void* handle);

ncclResult_t run(Tag<Fn::CommWindowRegister>, ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int flags);
ncclResult_t run(Tag<Fn::CommWindowDeregister>, ncclComm_t comm, ncclWindow_t win);

// reduction operators
ncclResult_t run(Tag<Fn::RedOpCreatePreMulSum>, ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                 ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t run(Tag<Fn::RedOpDestroy>, ncclRedOp_t op, ncclComm_t comm);

// operations
ncclResult_t run(Tag<Fn::AllReduce>, const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                 ncclComm_t comm, cudaStream_t stream);
ncclResult_t run(Tag<Fn::Reduce>, const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                 int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t run(Tag<Fn::Broadcast>, const void* send, void* recv, size_t count, ncclDataType_t dtype, int root,
                 ncclComm_t comm, cudaStream_t stream);
ncclResult_t run(Tag<Fn::Bcast>, void* buff, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                 cudaStream_t stream);
ncclResult_t run(Tag<Fn::AllGather>, const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                 cudaStream_t stream);
ncclResult_t run(Tag<Fn::ReduceScatter>, const void* send, void* recv, size_t count, ncclDataType_t dtype,
                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t run(Tag<Fn::AlltoAll>, const void* send, void* recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                 cudaStream_t stream);
ncclResult_t run(Tag<Fn::Gather>, const void* send, void* recv, size_t count, ncclDataType_t dtype, int root,
                 ncclComm_t comm, cudaStream_t stream);
ncclResult_t run(Tag<Fn::Scatter>, const void* send, void* recv, size_t count, ncclDataType_t dtype, int root,
                 ncclComm_t comm, cudaStream_t stream);
ncclResult_t run(Tag<Fn::Send>, const void* send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                 cudaStream_t stream);
ncclResult_t run(Tag<Fn::Recv>, void* recv, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                 cudaStream_t stream);
ncclResult_t run(Tag<Fn::GroupStart>);
ncclResult_t run(Tag<Fn::GroupEnd>);
ncclResult_t run(Tag<Fn::GroupSimulateEnd>, ncclSimInfo_t* info);

// Host functions of the device API: what they prepare is for kernels.
inline ncclResult_t refuse_device_call(const char* name) {
  warn_loudly("nccl%s : communication from kernels needs a GPU; the host runtime runs no kernels", name);
  return ncclInvalidUsage;
}

template <Fn F, class... Arguments>
ncclResult_t run(Tag<F>, Arguments...) {
  constexpr const abi::FunctionInfo* info = abi::find_function(F);
  static_assert(info->since > kVersion, "a function of the release that is followed has no overload above");
  warn_loudly("nccl%s is of NCCL 2.%u; the host runtime is as NCCL 2.%d", info->name, info->since / 100 % 100,
              kVersion / 100 % 100);
  return ncclInvalidUsage;
}

}  // namespace lockstep::nccl
