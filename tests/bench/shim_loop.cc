// SPDX-License-Identifier: MIT
//
// Two ranks, threads of one process, do all-reduces of 1 MiB on the host runtime, each waited for. Prints the median
// time of one in nanoseconds: bench_shim runs it with and without the shim and compares.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#include "nccl.h"

namespace {

constexpr int kRanks = 2, kWarmUp = 300, kRounds = 3000;
constexpr size_t kCount = (1 << 20) / sizeof(float);

void need(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "shim_loop: %s failed\n", what);
  std::exit(2);
}

double median_of_rank(ncclComm_t comm, int rank) {
  need(cudaSetDevice(rank) == cudaSuccess, "cudaSetDevice");
  void* buffer = nullptr;
  cudaStream_t stream = nullptr;
  need(cudaMalloc(&buffer, kCount * sizeof(float)) == cudaSuccess, "cudaMalloc");
  need(cudaMemset(buffer, 0, kCount * sizeof(float)) == cudaSuccess, "cudaMemset");
  need(cudaStreamCreate(&stream) == cudaSuccess, "cudaStreamCreate");
  std::vector<double> times;
  for (int i = 0; i < kWarmUp + kRounds; i++) {
    const auto start = std::chrono::steady_clock::now();
    need(ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclSum, comm, stream) == ncclSuccess, "ncclAllReduce");
    need(cudaStreamSynchronize(stream) == cudaSuccess, "cudaStreamSynchronize");
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    if (i >= kWarmUp) times.push_back(took.count());
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

}  // namespace

int main() {
  ncclComm_t comms[kRanks];
  const int devices[kRanks] = {0, 1};
  need(ncclCommInitAll(comms, kRanks, devices) == ncclSuccess, "ncclCommInitAll");
  double median = 0;
  std::thread other([&] { median_of_rank(comms[1], 1); });
  median = median_of_rank(comms[0], 0);
  other.join();
  for (ncclComm_t comm : comms) ncclCommDestroy(comm);
  std::printf("%.0f\n", median);
}
