// SPDX-License-Identifier: MIT
//
// What the clients of the libnccl that does nothing have in common.

#pragma once

#include "interpose/abi/nccl.h"

namespace lockstep {

inline char buffer[64];
inline const auto stream = reinterpret_cast<cudaStream_t>(0x77);

inline ncclComm_t init(int rank = 1, int nranks = 4) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm = nullptr;
  ncclCommInitRank(&comm, nranks, id, rank);
  return comm;
}

inline int all_reduce(ncclComm_t comm, size_t count) {
  return ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclMax, comm, stream);
}

}  // namespace lockstep
