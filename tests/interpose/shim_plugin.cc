// SPDX-License-Identifier: MIT
//
// Stands for a Python extension that is linked to libnccl.

#include "interpose/abi/nccl.h"

extern "C" __attribute__((visibility("default"))) int use_nccl() {
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&comm, 1, id, 0) != ncclSuccess) return 1;
  return ncclAllReduce(nullptr, nullptr, 42, ncclFloat32, ncclSum, comm, nullptr);
}
