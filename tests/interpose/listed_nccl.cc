// SPDX-License-Identifier: MIT
//
// A libnccl.so.2 that has every function the shim hooks, made from the same list, and does nothing in any of them but
// what it was told: set errno to a number of its own, and fail or not. What a hook does to errno shows against it.

#include <errno.h>

#include <atomic>
#include <cstdint>

#include "interpose/abi/foreach.h"
#include "interpose/abi/functions.h"
#include "interpose/abi/nccl.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using lockstep::abi::ArgRole;

thread_local int set_to;  // 0 = errno is left alone
thread_local ncclResult_t result = ncclSuccess;
std::atomic<uint64_t> made;

// Handles are numbers: nobody looks behind them.
ncclComm_t new_handle() { return reinterpret_cast<ncclComm_t>(0x100000 + 0x10 * ++made); }

template <ArgRole role, class T>
void give(T to) {
  if constexpr (role == ArgRole::new_comm || role == ArgRole::new_comms)
    if (result == ncclSuccess) *to = new_handle();
}

}  // namespace

EXPORT void listed_nccl_set(int error, int answer) {
  set_to = error;
  result = static_cast<ncclResult_t>(answer);
}

#define GIVE(triple) give<ArgRole::LOCKSTEP_ARG_ROLE(triple)>(LOCKSTEP_ARG_NAME(triple));
#define FUNCTION_untouched(result_type, name, ...)
#define FUNCTION_hooked(result_type, name, ...)                \
  EXPORT result_type nccl##name LOCKSTEP_PARAMS(__VA_ARGS__) { \
    LOCKSTEP_EACH(GIVE __VA_OPT__(, ) __VA_ARGS__)             \
    if (set_to) errno = set_to;                                \
    return result;                                             \
  }
#define LOCKSTEP_NCCL(id, since, hook, kind, result_type, name, ...) \
  FUNCTION_##hook(result_type, name __VA_OPT__(, ) __VA_ARGS__)
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "interpose/abi/nccl_functions.def"

// What the shim asks for by itself costs errno here, as it may in the real one.
EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = 23007;
  errno = EIO;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommCount(const ncclComm_t, int* count) {
  *count = 2;
  errno = EIO;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t, int* rank) {
  *rank = 0;
  errno = EIO;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t, int* device) {
  *device = 0;
  errno = EIO;
  return ncclSuccess;
}
EXPORT int ncclDevCommCreate(ncclComm_t, const void*, void*) {
  if (set_to) errno = set_to;
  return result;
}
