// SPDX-License-Identifier: MIT
//
// Three ranks, processes, on the host runtime: all add up on a communicator called "tri", then ranks 0 and 2 leave rank 1
// out (ncclCommShrink) and add up between themselves. Prints the sums; run with and without the shim.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "cuda_runtime.h"
#include "nccl.h"

namespace {

constexpr int kRanks = 3, kExcluded = 1;

struct Shared {
  std::atomic<int> have_id, shrunk;
  ncclUniqueId id;
  float sums[kRanks][2];
};

void need(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "shim_shrink_client: %s failed\n", what);
  _exit(2);
}

float sum_over(ncclComm_t comm, float value) {
  float* buffer = nullptr;
  need(cudaMalloc(reinterpret_cast<void**>(&buffer), sizeof value) == cudaSuccess, "cudaMalloc");
  need(cudaMemcpy(buffer, &value, sizeof value, cudaMemcpyHostToDevice) == cudaSuccess, "cudaMemcpy");
  need(ncclAllReduce(buffer, buffer, 1, ncclFloat32, ncclSum, comm, nullptr) == ncclSuccess, "ncclAllReduce");
  need(cudaStreamSynchronize(nullptr) == cudaSuccess, "cudaStreamSynchronize");
  need(cudaMemcpy(&value, buffer, sizeof value, cudaMemcpyDeviceToHost) == cudaSuccess, "cudaMemcpy back");
  return value;
}

int run_rank(int rank, Shared& shared) {
  need(cudaSetDevice(rank) == cudaSuccess, "cudaSetDevice");
  if (rank == 0) {
    need(ncclGetUniqueId(&shared.id) == ncclSuccess, "ncclGetUniqueId");
    shared.have_id = 1;
  }
  while (!shared.have_id) usleep(1000);
  ncclComm_t comm = nullptr, pair = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = "tri";
  need(ncclCommInitRankConfig(&comm, kRanks, shared.id, rank, &config) == ncclSuccess, "ncclCommInitRankConfig");
  shared.sums[rank][0] = sum_over(comm, static_cast<float>(rank + 1));
  if (rank != kExcluded) {
    int excluded[] = {kExcluded};
    need(ncclCommShrink(comm, excluded, 1, &pair, nullptr, NCCL_SHRINK_DEFAULT) == ncclSuccess, "ncclCommShrink");
    shared.sums[rank][1] = sum_over(pair, static_cast<float>(rank + 1));
    shared.shrunk++;
  }
  while (shared.shrunk < kRanks - 1) usleep(1000);
  if (pair) ncclCommDestroy(pair);
  ncclCommDestroy(comm);
  return 0;
}

}  // namespace

int main() {
  void* space = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return 2;
  auto& shared = *static_cast<Shared*>(space);
  for (int rank = 0; rank < kRanks; rank++)
    if (fork() == 0) {
      alarm(60);  // a rank that failed would leave the others waiting
      exit(run_rank(rank, shared));
    }
  int failed = 0;
  for (int status; wait(&status) > 0;) failed += status != 0;
  for (const auto& sums : shared.sums) std::printf("%g %g\n", static_cast<double>(sums[0]), static_cast<double>(sums[1]));
  return failed;
}
