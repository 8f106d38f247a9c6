// SPDX-License-Identifier: MIT
//
// A hundred collectives of all kinds on one communicator, each result checked; for tests and benchmarks of many ranks.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cuda_runtime.h"
#include "nccl.h"

namespace lockstep::test {

inline uint32_t mixed_input(int rank, int round, size_t i) {
  return static_cast<uint32_t>(rank + 1) * 2654435761u + static_cast<uint32_t>(round) * 40503u +
         static_cast<uint32_t>(i) * 97u;
}

// What rank `rank` must have at element i of `block` elements a rank after collective number `round`.
inline uint32_t mixed_expected(int rank, int n, int round, size_t i, size_t block) {
  const auto sum = [&](size_t at) {
    uint32_t total = 0;
    for (int r = 0; r < n; ++r) total += mixed_input(r, round, at);
    return total;
  };
  const size_t from = i / block;
  switch (round % 6) {
    case 1:
      return mixed_input(round % n, round, i);  // broadcast
    case 2:
      return mixed_input(static_cast<int>(from), round, i % block);  // all-gather
    case 3:
      return sum(static_cast<size_t>(rank) * block + i);  // reduce-scatter
    case 4:
      return mixed_input(static_cast<int>(from), round, static_cast<size_t>(rank) * block + i % block);  // all-to-all
    case 5:
      return mixed_input((rank + n - 1) % n, round, i);  // shift
    default:
      return sum(i);  // all-reduce
  }
}

inline ncclResult_t mixed_call(int rank, int n, int round, const uint32_t* send, uint32_t* recv, size_t block,
                               ncclComm_t comm, cudaStream_t stream) {
  switch (round % 6) {
    case 1:
      return ncclBroadcast(send, recv, block, ncclUint32, round % n, comm, stream);
    case 2:
      return ncclAllGather(send, recv, block, ncclUint32, comm, stream);
    case 3:
      return ncclReduceScatter(send, recv, block, ncclUint32, ncclSum, comm, stream);
    case 4:
      return ncclAlltoAll(send, recv, block, ncclUint32, comm, stream);
    case 5:
      ncclGroupStart();
      ncclSend(send, block, ncclUint32, (rank + 1) % n, comm, stream);
      ncclRecv(recv, block, ncclUint32, (rank + n - 1) % n, comm, stream);
      return ncclGroupEnd();
    default:
      return ncclAllReduce(send, recv, block, ncclUint32, ncclSum, comm, stream);
  }
}

class MixedCollectives {
 public:
  MixedCollectives(int rank, int n) : rank_(rank), n_(n) {
    const size_t room = kLargest * static_cast<size_t>(n) * sizeof(uint32_t);
    ready_ = cudaMalloc(&send_, room) == cudaSuccess && cudaMalloc(&recv_, room) == cudaSuccess;
  }
  MixedCollectives(const MixedCollectives&) = delete;
  MixedCollectives& operator=(const MixedCollectives&) = delete;
  ~MixedCollectives() {
    cudaFree(send_);
    cudaFree(recv_);
  }

  // False: something failed or a number was wrong, told on stderr.
  bool run(int rounds, ncclComm_t comm, cudaStream_t stream) {
    for (int round = 0; round < rounds; ++round)
      if (!ready_ || !one(round, comm, stream)) return false;
    return true;
  }

 private:
  static constexpr size_t kLargest = 1024;  // elements of a block

  bool one(int round, ncclComm_t comm, cudaStream_t stream) {
    const size_t blocks[] = {2, 40, kLargest};
    const size_t block = blocks[round / 6 % 3];
    for (size_t i = 0; i < block * static_cast<size_t>(n_); ++i) send_[i] = mixed_input(rank_, round, i);
    ncclResult_t result = mixed_call(rank_, n_, round, send_, recv_, block, comm, stream);
    if (result == ncclSuccess && cudaStreamSynchronize(stream) != cudaSuccess) result = ncclUnhandledCudaError;
    if (result != ncclSuccess) {
      std::fprintf(stderr, "rank %d, collective %d: %s\n", rank_, round, ncclGetErrorString(result));
      return false;
    }
    const bool gathers = round % 6 == 2 || round % 6 == 4;
    const size_t length = gathers ? block * static_cast<size_t>(n_) : block;
    // All of a small result, and every 61st element of a large one: what is compared costs n additions each.
    for (size_t i = 0; i<length; i += length> 256 ? 61 : 1) {
      const uint32_t expected = mixed_expected(rank_, n_, round, i, block);
      if (recv_[i] == expected) continue;
      std::fprintf(stderr, "rank %d, collective %d, element %zu of %zu: %u, expected %u\n", rank_, round, i, length,
                   recv_[i], expected);
      return false;
    }
    return true;
  }

  const int rank_;
  const int n_;
  uint32_t* send_ = nullptr;
  uint32_t* recv_ = nullptr;
  bool ready_ = false;
};

}  // namespace lockstep::test
