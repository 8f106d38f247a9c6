// SPDX-License-Identifier: MIT
//
// Stands for a Python extension that is linked to libnccl.

#include <dlfcn.h>

#include "interpose/abi/nccl.h"

extern "C" __attribute__((visibility("default"))) int use_nccl() {
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&comm, 1, id, 0) != ncclSuccess) return 1;
  return ncclAllReduce(nullptr, nullptr, 42, ncclFloat32, ncclSum, comm, nullptr);
}

// This library is in a private scope: only a question that is taken as its own finds these names. Their first letters are
// those that the shim's dlsym looks at twice.
extern "C" __attribute__((visibility("default"))) int ncplugin() { return 1; }
extern "C" __attribute__((visibility("default"))) int cuplugin() { return 1; }
extern "C" __attribute__((visibility("default"))) int plugin() { return 1; }
extern "C" __attribute__((visibility("default"))) int see(const char* name) { return dlsym(RTLD_DEFAULT, name) != nullptr; }
// The next one after this library is libnccl, in this library's own scope.
extern "C" __attribute__((visibility("default"))) int see_next(const char* name) {
  Dl_info info;
  void* found = dlsym(RTLD_NEXT, name);
  return found && dladdr(found, &info) && __builtin_strstr(info.dli_fname, "libnccl.so") != nullptr;
}
