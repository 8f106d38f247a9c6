// SPDX-License-Identifier: MIT
//
// A communicator's whole life, over and over: no descriptor, thread or mapping stays behind, nor any memory of the
// devices. LOCKSTEP_TEST_CYCLES=N lives it N times.

#include <cstdlib>
#include <cstring>

#include "tests/reference/left_behind.h"
#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

// Made with an id, used, split, shrunk, used as an operator's home, and destroyed or aborted.
void live(int rank, int n, const ncclUniqueId& id, bool abort) {
  Rank me(rank, n, id);
  DeviceBuffer<float> data(20000);
  void* registered = nullptr;
  NCCL_OK(ncclCommRegister(me.comm, data.data, 80000, &registered));
  NCCL_OK(ncclAllReduce(data.data, data.data, 20000, ncclFloat, ncclSum, me.comm, me.stream));
  CUDA_OK(cudaLaunchHostFunc(
      me.stream, [](void*) {}, nullptr));
  cudaEvent_t event = nullptr;
  CUDA_OK(cudaEventCreate(&event));
  CUDA_OK(cudaEventRecord(event, me.stream));
  CUDA_OK(cudaEventSynchronize(event));
  CUDA_OK(cudaEventDestroy(event));

  ncclComm_t part = nullptr;
  NCCL_OK(ncclCommSplit(me.comm, 0, -rank, &part, nullptr));
  NCCL_OK(ncclAllReduce(data.data, data.data, 10, ncclFloat, ncclSum, part, me.stream));
  me.sync();
  NCCL_OK(ncclCommDestroy(part));

  int left_out[] = {0};
  if (rank != 0) {
    NCCL_OK(ncclCommShrink(me.comm, left_out, 1, &part, nullptr, NCCL_SHRINK_DEFAULT));
    NCCL_OK(ncclAllReduce(data.data, data.data, 10, ncclFloat, ncclSum, part, me.stream));
    me.sync();
    NCCL_OK(ncclCommFinalize(part));
    NCCL_OK(ncclCommDestroy(part));
  }

  ncclRedOp_t half;
  float scale = 0.5f;
  NCCL_OK(ncclRedOpCreatePreMulSum(&half, &scale, ncclFloat, ncclScalarHostImmediate, me.comm));
  NCCL_OK(ncclAllReduce(data.data, data.data, 10, ncclFloat, half, me.comm, me.stream));
  NCCL_OK(ncclRedOpDestroy(half, me.comm));
  me.sync();
  NCCL_OK(ncclCommDeregister(me.comm, registered));
  if (abort) {
    NCCL_OK(ncclCommAbort(me.comm));
    CUDA_OK(cudaStreamDestroy(me.stream));
  } else {
    me.close();
  }
}

// Fewer under the thread sanitizer: a life takes ten times as long there, and leaves behind what it leaves elsewhere.
int wanted_cycles() {
  const char* const wanted = std::getenv("LOCKSTEP_TEST_CYCLES");
  if (wanted != nullptr) return std::atoi(wanted);
  return kThreadSanitizer ? 100 : 1000;
}

TEST(Leaks, NothingOfALife) {
  const int cycles = wanted_cycles();
  constexpr int kRanks = 3;
  int channel[kRanks][2];  // to every rank but the first, which makes the ids
  for (auto& each : channel) ASSERT_EQ(0, pipe(each));
  run_ranks(
      As::processes, kRanks,
      [&](int rank) {
        const auto cycle = [&](int number) {
          ncclUniqueId id;
          if (rank == 0) {
            NCCL_OK(ncclGetUniqueId(&id));
            for (int peer = 1; peer < kRanks; ++peer)
              ASSERT_EQ(static_cast<ssize_t>(sizeof id), write(channel[peer][1], &id, sizeof id));
          } else {
            ASSERT_EQ(static_cast<ssize_t>(sizeof id), read(channel[rank][0], &id, sizeof id));
          }
          live(rank, kRanks, id, number % 3 == 2);
        };
        for (int i = 0; i < 3; ++i) cycle(i);  // what is made once is there then
        const LeftBehind before = LeftBehind::now();
        size_t free_before = 0;
        size_t free_after = 0;
        size_t total = 0;
        CUDA_OK(cudaMemGetInfo(&free_before, &total));
        for (int i = 0; i < cycles && !::testing::Test::HasFailure(); ++i) cycle(i);
        before.expect_no_more();
        CUDA_OK(cudaMemGetInfo(&free_after, &total));
        EXPECT_EQ(free_before, free_after);
      },
      milliseconds(300'000));
  for (const auto& each : channel)
    for (const int end : each) close(end);
}

// The same with all ranks in one process.
TEST(Leaks, NothingOfALifeOfThreads) {
  const int cycles = wanted_cycles();
  std::vector<Child> child;
  child.emplace_back([&] {
    constexpr int kRanks = 3;
    const auto cycle = [&](int number) {
      ncclUniqueId id;
      NCCL_OK(ncclGetUniqueId(&id));
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < kRanks; ++rank)
        ranks.emplace_back([&, rank] { live(rank, kRanks, id, number % 3 == 2); });
      for (std::thread& rank : ranks) rank.join();
    };
    for (int i = 0; i < 3; ++i) cycle(i);
    const LeftBehind before = LeftBehind::now();
    for (int i = 0; i < cycles && !::testing::Test::HasFailure(); ++i) cycle(i);
    before.expect_no_more();
  });
  expect_all_end_well(child, milliseconds(300'000));
}

// Who makes an id need not be a rank; it drops what it no longer needs when it makes the next one.
TEST(Leaks, NothingOfAMakerOfIds) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  const LeftBehind before = LeftBehind::now();
  for (int i = 0; i < 5; ++i) {
    run_ranks(As::processes, 1, [&](int rank) { Rank(rank, 1, id).close(); });
    NCCL_OK(ncclGetUniqueId(&id));
  }
  before.expect_no_more();
}

// A stream's thread for host functions ends with the stream.
TEST(Leaks, NoThreadOfDestroyedStreams) {
  std::vector<Child> child;
  child.emplace_back([] {
    void* data = nullptr;
    CUDA_OK(cudaMalloc(&data, 8));
    CUDA_OK(cudaMemsetAsync(data, 0, 8));
    CUDA_OK(cudaStreamSynchronize(nullptr));
    const LeftBehind before = LeftBehind::now();  // this thread and the progress thread; a sanitizer may have its own
    for (int i = 0; i < 50; ++i) {
      cudaStream_t stream = nullptr;
      CUDA_OK(cudaStreamCreateWithFlags(&stream, i % 2 == 0 ? cudaStreamDefault : cudaStreamNonBlocking));
      CUDA_OK(cudaLaunchHostFunc(
          stream, [](void*) { std::this_thread::sleep_for(milliseconds(1)); }, nullptr));
      if (i % 3 == 0) CUDA_OK(cudaStreamSynchronize(stream));
      CUDA_OK(cudaStreamDestroy(stream));
      if (i % 3 == 1) CUDA_OK(cudaDeviceSynchronize());
    }
    CUDA_OK(cudaDeviceSynchronize());
    std::this_thread::sleep_for(milliseconds(50));  // the progress thread falls asleep
    before.expect_no_more();
  });
  expect_all_end_well(child);
}

}  // namespace
}  // namespace lockstep::test
