// SPDX-License-Identifier: MIT
//
// A libnccl.so.2 that does nothing and returns at once, so that tests and benchmarks see the shim and nothing else. It
// keeps just enough state to answer for communicators, and does what a test asks for by the element count of a call:
//
//   count 1004 .. 1007   the call returns that minus 1000 as its result (7: in progress)
//   count 1100           the call sets errno to EDOM and succeeds
//   count 1200           the call never returns (it sleeps in pause)
//   count 1300           the call spins for ever
//   count 1400           the call raises SIGSEGV
//   count 1500           the call forks; parent and child both come back from it
//
// Like the real one it calls some public functions of its own through the PLT (ncclBcast calls ncclBroadcast,
// ncclCommInitAll calls ncclGetUniqueId), and has a sticky error for groups.

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "interpose/abi/foreach.h"
#include "interpose/abi/functions.h"
#include "interpose/abi/nccl.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct ncclComm {
  int rank, nranks, device, children;
};

namespace {

thread_local int group_depth;
thread_local ncclResult_t group_error = ncclSuccess;
std::atomic<int> made, calls;

ncclComm_t make(int rank, int nranks) { return new ncclComm{rank, nranks, rank, 0}; }

ncclResult_t act(size_t count) {
  calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // not locked: see bench_shim.cc
  if (count < 1000) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  if (count >= 1004 && count <= 1007) result = static_cast<ncclResult_t>(count - 1000);
  if (count == 1100) errno = EDOM;
  while (count == 1200) pause();
  for (volatile uint64_t spins = 0; count == 1300 && spins != UINT64_MAX;) spins = spins + 1;
  if (count == 1400) raise(SIGSEGV);
  if (count == 1500 && fork() < 0) result = ncclSystemError;
  if (group_depth && result != ncclSuccess && result != ncclInProgress) group_error = result;
  return result;
}

}  // namespace

// Operations that this copy of the library was asked for.
EXPORT int fake_nccl_calls() { return calls.load(); }

EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  const int n = ++made;
  const pid_t pid = getpid();
  memcpy(id->internal, &pid, sizeof pid);
  memcpy(id->internal + 8, &n, sizeof n);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId, int rank) {
  if (rank < 0 || rank >= nranks) return ncclInvalidArgument;
  *comm = make(rank, nranks);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId, int rank, ncclConfig_t* config) {
  *comm = make(rank, nranks);
  return config && config->size >= 24 && config->blocking == 0 ? ncclInProgress : ncclSuccess;
}
EXPORT ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ndev, const int*) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  for (int i = 0; i < ndev; i++) comms[i] = make(i, ndev);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int, ncclComm_t* newcomm, ncclConfig_t*) {
  comm->children++;
  *newcomm = color == NCCL_SPLIT_NOCOLOR ? nullptr : make(comm->rank / 2, comm->nranks / 2);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
// What an abort cuts off is over for CUDA before the abort is: the test says what happens meanwhile.
static void (*during_abort)() = nullptr;
EXPORT void fake_nccl_during_abort(void (*what)()) { during_abort = what; }
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (during_abort) during_abort();
  return ncclCommDestroy(comm);
}
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->nranks;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclAllReduce(const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  return act(count);
}
// As the real one has it: the same under a name that nobody stands in front of.
EXPORT ncclResult_t pncclAllReduce(const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  return act(count);
}
EXPORT ncclResult_t ncclReduce(const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                               cudaStream_t) {
  return act(count);
}
EXPORT ncclResult_t ncclBroadcast(const void*, void*, size_t count, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return act(count);
}
EXPORT ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t s) {
  return ncclBroadcast(buff, buff, count, type, root, comm, s);
}
EXPORT ncclResult_t ncclAllGather(const void*, void*, size_t count, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return act(count);
}
EXPORT ncclResult_t ncclReduceScatter(const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                      cudaStream_t) {
  return act(count);
}
EXPORT ncclResult_t ncclSend(const void*, size_t count, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return act(count); }
EXPORT ncclResult_t ncclRecv(void*, size_t count, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return act(count); }
EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t size, ncclWindow_t* window, int) {
  *window = nullptr;
  return size ? ncclSuccess : ncclInvalidArgument;
}
EXPORT int ncclDevCommCreate(ncclComm_t, const void* requirements, void*) {
  return requirements ? ncclSuccess : ncclInvalidArgument;
}
EXPORT ncclResult_t ncclMemAlloc(void** ptr, size_t) {
  *ptr = nullptr;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclGroupStart() {
  group_depth++;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  const ncclResult_t result = group_error;
  group_error = ncclSuccess;
  return result;
}
EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return ncclGroupEnd(); }
