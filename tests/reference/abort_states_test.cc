// SPDX-License-Identifier: MIT
//
// ncclCommAbort in every state a communicator can be in. One rank of two waits for the other, which never comes;
// another thread aborts; then the waiting call returns, streams are over, and the buffers may be freed.

#include <atomic>
#include <cstdlib>
#include <string>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

constexpr milliseconds kUntilItWaits(40);

// Rank 0 runs `wait` on a thread of its own, and is aborted a while after that has said that it is about to wait. Rank
// 1 is there, but does nothing.
using Ready = std::function<void()>;
void abort_while(As as, const std::function<void(Rank&, const Ready&)>& wait) {
  run_job(as, 2, [&](Rank& me) {
    std::thread waiter;
    std::atomic<bool> ready{me.rank != 0};
    if (me.rank == 0) waiter = std::thread([&] { wait(me, [&] { ready.store(true); }); });
    while (!ready.load()) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(kUntilItWaits);
    NCCL_OK(ncclCommAbort(me.comm));
    if (waiter.joinable()) waiter.join();
    me.sync();
    CUDA_OK(cudaStreamDestroy(me.stream));
    NCCL_OK(ncclCommInitAll(&me.comm, 1, nullptr));  // for run_job to destroy
    CUDA_OK(cudaStreamCreate(&me.stream));
  });
}

class AbortState : public ::testing::TestWithParam<As> {};

TEST_P(AbortState, EndsASmallAndALargeCollective) {
  for (const size_t count : {size_t{1}, size_t{100000}})
    abort_while(GetParam(), [count](Rank& me, const Ready& ready) {
      DeviceBuffer<int> data(count);
      NCCL_OK(ncclAllReduce(data.data, data.data, count, ncclInt, ncclSum, me.comm, me.stream));
      NCCL_OK(ncclAllGather(data.data, data.data, 0, ncclInt, me.comm, me.stream));
      NCCL_OK(ncclBroadcast(data.data, data.data, count, ncclInt, 1, me.comm, me.stream));  // queued behind
      ready();
      me.sync();
    });
}

TEST_P(AbortState, EndsMessages) {
  abort_while(GetParam(), [](Rank& me, const Ready& ready) {
    DeviceBuffer<int> data(50000);
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclSend(data.data, data.count / 2, ncclInt, 1, me.comm, me.stream));
    NCCL_OK(ncclRecv(&data[data.count / 2], data.count / 2, ncclInt, 1, me.comm, me.stream));
    NCCL_OK(ncclGroupEnd());
    ready();
    me.sync();
  });
}

TEST_P(AbortState, EndsTheMakingOfChildren) {
  abort_while(GetParam(), [](Rank& me, const Ready& ready) {
    ncclComm_t part = nullptr;
    ready();
    EXPECT_EQ(ncclInternalError, ncclCommSplit(me.comm, 0, 0, &part, nullptr));
    EXPECT_EQ(nullptr, part);
  });
}

TEST_P(AbortState, EndsFinalizeAndDestroy) {
  for (const bool finalize : {true, false})
    abort_while(GetParam(), [finalize](Rank& me, const Ready& ready) {
      DeviceBuffer<int> data(1);
      NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
      ready();
      EXPECT_EQ(ncclSuccess, finalize ? ncclCommFinalize(me.comm) : ncclCommDestroy(me.comm));
    });
}

// Behind something that takes long, on a stream that is not NCCL's business.
TEST_P(AbortState, EndsWhatHasNotBegun) {
  abort_while(GetParam(), [](Rank& me, const Ready& ready) {
    DeviceBuffer<int> data(1);
    CUDA_OK(cudaLaunchHostFunc(
        me.stream, [](void*) { std::this_thread::sleep_for(3 * kUntilItWaits); }, nullptr));
    NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    ready();
    me.sync();
  });
}

TEST_P(AbortState, EndsALaunchedGraph) {
  abort_while(GetParam(), [](Rank& me, const Ready& ready) {
    DeviceBuffer<int> data(1);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal));
    NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    CUDA_OK(cudaStreamEndCapture(me.stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_OK(cudaGraphLaunch(exec, me.stream));
    ready();
    me.sync();
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, AbortState, ::testing::Values(As::processes, As::threads),
                         [](const auto& each) { return std::string(name_of(each.param)); });

// Its handle is there before it is complete, for another thread.
TEST(AbortOfInit, GetsOutWhoWaitsForRanks) {
  for (const bool named : {false, true}) {
    if (named) setenv("NCCL_COMM_ID", ("nobody:" + std::to_string(getpid() % 60000)).c_str(), 1);
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    run_ranks(As::processes, 1, [&](int) {
      ncclComm_t comm = nullptr;
      std::thread waiter([&] { EXPECT_EQ(ncclInternalError, ncclCommInitRank(&comm, 2, id, 1)); });
      while (__atomic_load_n(&comm, __ATOMIC_ACQUIRE) == nullptr) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(kUntilItWaits);
      NCCL_OK(ncclCommAbort(__atomic_load_n(&comm, __ATOMIC_ACQUIRE)));
      waiter.join();
    });
    unsetenv("NCCL_COMM_ID");
  }
}

}  // namespace
}  // namespace lockstep::test
