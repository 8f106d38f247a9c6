// SPDX-License-Identifier: MIT
//
// Communicators with config.blocking = 0: calls answer ncclInProgress, a thread of the library does the work, and
// ncclCommGetAsyncError says when it is over.

#include <cstring>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

constexpr const char* kTooEarly = "Attempt to use communicator before the previous operation returned ncclSuccess";

ncclConfig_t nonblocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

// What the last call comes to.
ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  const auto deadline = Clock::now() + milliseconds(20000);
  while (Clock::now() < deadline) {
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
    if (state != ncclInProgress) return state;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return state;
}
#define SETTLED(call, comm)                                              \
  do {                                                                   \
    ncclResult_t answer_of_call = (call);                                \
    if (answer_of_call == ncclInProgress) answer_of_call = ncclSuccess;  \
    ASSERT_EQ(ncclSuccess, answer_of_call) << ncclGetLastError(nullptr); \
    ASSERT_EQ(ncclSuccess, settled(comm));                               \
  } while (false)

class Nonblocking : public ::testing::TestWithParam<As> {};

TEST_P(Nonblocking, LiveADifferentLife) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(GetParam(), 3, [&](int rank) {
    CUDA_OK(cudaSetDevice(rank));
    cudaStream_t stream = nullptr;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ncclConfig_t config = nonblocking();
    ncclComm_t comm = nullptr;
    SETTLED(ncclCommInitRankConfig(&comm, 3, id, rank, &config), comm);
    DeviceBuffer<int> data(3);
    for (size_t i = 0; i < 3; ++i) data[i] = rank;
    SETTLED(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, comm, stream), comm);
    NCCL_OK(ncclGroupStart());
    EXPECT_EQ(ncclSuccess, ncclSend(&data[1], 1, ncclInt, (rank + 1) % 3, comm, stream));  // inside nothing happens
    EXPECT_EQ(ncclSuccess, ncclRecv(&data[2], 1, ncclInt, (rank + 2) % 3, comm, stream));
    EXPECT_EQ(ncclInProgress, ncclGroupEnd());
    ASSERT_EQ(ncclSuccess, settled(comm));
    SETTLED(ncclAlltoAll(data.data, data.data, 0, ncclInt, comm, stream), comm);
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(3, data[0]);
    EXPECT_EQ((rank + 2) % 3, data[2]);

    ncclComm_t part = reinterpret_cast<ncclComm_t>(8);
    SETTLED(ncclCommSplit(comm, rank == 2 ? NCCL_SPLIT_NOCOLOR : 0, rank, &part, nullptr), comm);
    if (rank == 2) {
      EXPECT_EQ(nullptr, part);
    } else {
      int size = 0;
      NCCL_OK(ncclCommCount(part, &size));
      EXPECT_EQ(2, size);
      SETTLED(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, part, stream), part);  // nonblocking too
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(6, data[0]);
      SETTLED(ncclCommFinalize(part), part);
      NCCL_OK(ncclCommDestroy(part));
    }
    SETTLED(ncclCommFinalize(comm), comm);
    NCCL_OK(ncclCommDestroy(comm));
    CUDA_OK(cudaStreamDestroy(stream));
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Nonblocking, ::testing::Values(As::processes, As::threads),
                         [](const auto& each) { return std::string(name_of(each.param)); });

// Nobody comes: the call has returned all the same, nothing else may be called, and an abort ends it.
TEST(NonblockingInit, TakesNoOtherCallUntilItIsOver) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(As::processes, 1, [&](int) {
    ncclConfig_t config = nonblocking();
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config));
    std::this_thread::sleep_for(milliseconds(30));
    ncclResult_t state = ncclSuccess;
    NCCL_OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(ncclInProgress, state);
    int value = 0;
    const auto too_early = [&](ncclResult_t result) {
      EXPECT_EQ(ncclInvalidArgument, result);
      EXPECT_STREQ(kTooEarly, ncclGetLastError(comm));
    };
    too_early(ncclCommCount(comm, &value));
    too_early(ncclCommUserRank(comm, &value));
    too_early(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr));
    too_early(ncclCommFinalize(comm));
    too_early(ncclCommDestroy(comm));
    ncclComm_t part = nullptr;
    too_early(ncclCommSplit(comm, 0, 0, &part, nullptr));
    NCCL_OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(ncclInProgress, state);
    NCCL_OK(ncclCommAbort(comm));
  });
}

// A split that waits for a rank that does not come.
TEST(NonblockingSplit, IsEndedByAnAbortOfItsParent) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(As::threads, 2, [&](int rank) {
    CUDA_OK(cudaSetDevice(rank));
    ncclConfig_t config = nonblocking();
    ncclComm_t comm = nullptr;
    SETTLED(ncclCommInitRankConfig(&comm, 2, id, rank, &config), comm);
    ncclComm_t part = nullptr;
    if (rank == 0) {
      EXPECT_EQ(ncclInProgress, ncclCommSplit(comm, 0, 0, &part, nullptr));
    }
    NCCL_OK(ncclCommAbort(comm));
    EXPECT_EQ(nullptr, part);
  });
}

TEST(NonblockingGroup, TakesNoBlockingCommunicators) {
  run_job(As::processes, 1, [](Rank& me) {
    ncclConfig_t config = nonblocking();
    ncclComm_t other = nullptr;
    SETTLED(ncclCommSplit(me.comm, 0, 0, &other, &config), me.comm);
    DeviceBuffer<int> data(2);
    data[0] = 3;
    data[1] = 4;
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllReduce(&data[0], &data[1], 1, ncclInt, ncclSum, me.comm, me.stream));
    EXPECT_EQ(ncclInvalidArgument, ncclAllReduce(&data[0], &data[1], 1, ncclInt, ncclSum, other, me.stream));
    EXPECT_STREQ("Blocking and nonblocking communicators are not allowed in the same group.",
                 ncclGetLastError(nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclGroupEnd());
    me.sync();
    EXPECT_EQ(4, data[1]);
    NCCL_OK(ncclCommAbort(other));
  });
}

// A refused call fails a nonblocking communicator for good, as in NCCL; it says why, and can be aborted.
TEST(NonblockingError, StaysUntilTheEnd) {
  run_job(As::processes, 1, [](Rank& me) {
    ncclConfig_t config = nonblocking();
    ncclComm_t comm = nullptr;
    SETTLED(ncclCommSplit(me.comm, 0, 0, &comm, &config), me.comm);
    DeviceBuffer<int> data(2);
    EXPECT_EQ(ncclInvalidArgument, ncclBroadcast(data.data, data.data, 1, ncclInt, 7, comm, me.stream));
    ncclResult_t state = ncclSuccess;
    NCCL_OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(ncclInvalidArgument, state);
    EXPECT_EQ(ncclInvalidArgument, ncclBroadcast(data.data, data.data, 1, ncclInt, 0, comm, me.stream));
    EXPECT_STREQ(kTooEarly, ncclGetLastError(comm));
    NCCL_OK(ncclCommAbort(comm));
  });
}

TEST(NonblockingSetting, OverridesTheConfiguration) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  run_ranks(As::processes, 1, [&](int) {
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclInProgress, ncclCommInitRank(&comm, 2, id, 0));
    NCCL_OK(ncclCommAbort(comm));
  });
  unsetenv("NCCL_COMM_BLOCKING");
}

}  // namespace
}  // namespace lockstep::test
