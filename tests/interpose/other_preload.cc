// SPDX-License-Identifier: MIT
//
// Another tool's preload that stands in front of NCCL as well, in the two usual ways, and says at the end what it saw.

#include <dlfcn.h>
#include <stdio.h>

#include "interpose/abi/nccl.h"

namespace {
int seen;
struct Report {
  ~Report() { fprintf(stderr, "the other preload saw %d\n", seen); }
} at_end;
}  // namespace

extern "C" __attribute__((visibility("default"))) ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count,
                                                                            ncclDataType_t type, ncclRedOp_t op,
                                                                            ncclComm_t comm, cudaStream_t stream) {
  static const auto next = reinterpret_cast<decltype(&ncclAllReduce)>(dlsym(RTLD_NEXT, "ncclAllReduce"));
  seen++;
  return next(send, recv, count, type, op, comm, stream);
}
extern "C" __attribute__((visibility("default"))) ncclResult_t ncclGroupEnd() {
  static const auto next = reinterpret_cast<decltype(&ncclGroupEnd)>(dlsym(RTLD_NEXT, "ncclGroupEnd"));
  seen++;
  return next();
}
