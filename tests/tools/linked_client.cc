// SPDX-License-Identifier: MIT
//
// A small NCCL program as people write them: two devices, one communicator each, one all-reduce. Built in all the ways
// programs are linked, it says on stdout which libraries it got to.

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

// A mark like the one a statically linked CUDA runtime leaves, where this file stands for such a program.
#ifdef LINKED_CLIENT_MARK
extern "C" const char linked_client_mark[] __attribute__((used)) = LINKED_CLIENT_MARK;
#endif

static void check(int result, const char* what) {
  if (result == 0) return;
  std::printf("%s failed: %d\n", what, result);
  std::exit(3);
}

int main() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  constexpr int kRanks = 2;
  constexpr size_t kCount = 1000;
  ncclComm_t comms[kRanks];
  cudaStream_t streams[kRanks];
  float* data[kRanks];
  check(ncclCommInitAll(comms, kRanks, nullptr), "ncclCommInitAll");
  for (int rank = 0; rank < kRanks; ++rank) {
    check(cudaSetDevice(rank), "cudaSetDevice");
    check(cudaStreamCreate(&streams[rank]), "cudaStreamCreate");
    check(cudaMalloc(&data[rank], kCount * sizeof(float)), "cudaMalloc");
    const std::vector<float> input(kCount, static_cast<float>(rank + 1));
    check(cudaMemcpy(data[rank], input.data(), kCount * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  check(ncclGroupStart(), "ncclGroupStart");
  for (int rank = 0; rank < kRanks; ++rank)
    check(ncclAllReduce(data[rank], data[rank], kCount, ncclFloat, ncclSum, comms[rank], streams[rank]),
          "ncclAllReduce");
  check(ncclGroupEnd(), "ncclGroupEnd");
  for (int rank = 0; rank < kRanks; ++rank) {
    check(cudaSetDevice(rank), "cudaSetDevice");
    check(cudaStreamSynchronize(streams[rank]), "cudaStreamSynchronize");
    float last = 0;
    check(cudaMemcpy(&last, data[rank] + kCount - 1, sizeof last, cudaMemcpyDeviceToHost), "cudaMemcpy");
    check(last == 3 ? 0 : 1, "the sum");
  }
  for (ncclComm_t comm : comms) check(ncclCommDestroy(comm), "ncclCommDestroy");
  std::printf("sum of %d ranks is right\n", kRanks);
  return 0;
}
