// SPDX-License-Identifier: MIT
//
// Communicators made of others, and cut off: shrink, revoke, windows, registrations, the order of ends.

#include <cstring>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

class Children : public ::testing::TestWithParam<As> {};

int rank_in(ncclComm_t comm) {
  int rank = -1;
  EXPECT_EQ(ncclSuccess, ncclCommUserRank(comm, &rank)) << ncclGetLastError(comm);
  return rank;
}
int sum_of_ranks(ncclComm_t comm, cudaStream_t stream) {
  DeviceBuffer<int> data(1);
  data[0] = rank_in(comm);
  EXPECT_EQ(ncclSuccess, ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, comm, stream));
  EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
  return data[0];
}

TEST_P(Children, OfAShrinkAreWhoIsNotExcluded) {
  run_job(GetParam(), 5, [](Rank& me) {
    ncclComm_t part = nullptr;
    int excluded[2] = {3, 1};
    if (me.rank != 1 && me.rank != 3) {
      NCCL_OK(ncclCommShrink(me.comm, excluded, 2, &part, nullptr, NCCL_SHRINK_DEFAULT));
      EXPECT_EQ(1, excluded[0]);  // sorted, in the caller's array
      EXPECT_EQ(3, excluded[1]);
      EXPECT_EQ(me.rank / 2, rank_in(part));
      EXPECT_EQ(3, sum_of_ranks(part, me.stream));
      NCCL_OK(ncclCommDestroy(part));
    } else {
      EXPECT_EQ(ncclInvalidArgument, ncclCommShrink(me.comm, excluded, 2, &part, nullptr, NCCL_SHRINK_DEFAULT));
      EXPECT_EQ(nullptr, part);
    }
    EXPECT_EQ(10, sum_of_ranks(me.comm, me.stream));  // the parent goes on
    // Another one, of others, led by another rank.
    int first[1] = {0};
    if (me.rank != 0) {
      NCCL_OK(ncclCommShrink(me.comm, first, 1, &part, nullptr, NCCL_SHRINK_DEFAULT));
      EXPECT_EQ(6, sum_of_ranks(part, me.stream));
      NCCL_OK(ncclCommDestroy(part));
    }
  });
}

// One rank is dead, the others hang in a collective with it: shrinking with abort gets them out, and on.
TEST_P(Children, OfAShrinkWithAbortLeaveAStuckParent) {
  run_job(GetParam(), 3, [](Rank& me) {
    if (me.rank == 1) return;
    DeviceBuffer<int> data(30000);
    NCCL_OK(ncclAllReduce(data.data, data.data, data.count, ncclInt, ncclSum, me.comm, me.stream));
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(me.stream));
    int excluded[1] = {1};
    ncclComm_t part = nullptr;
    NCCL_OK(ncclCommShrink(me.comm, excluded, 1, &part, nullptr, NCCL_SHRINK_ABORT));
    me.sync();
    EXPECT_EQ(1, sum_of_ranks(part, me.stream));
    NCCL_OK(ncclCommDestroy(part));
  });
}

TEST_P(Children, CanBeMadeOfARevokedCommunicator) {
  run_job(GetParam(), 3, [](Rank& me) {
    DeviceBuffer<int> data(30000);
    if (me.rank != 2) {
      NCCL_OK(ncclAllReduce(data.data, data.data, data.count, ncclInt, ncclSum, me.comm, me.stream));
      std::this_thread::sleep_for(milliseconds(20));
    }
    EXPECT_EQ(ncclInvalidArgument, ncclCommRevoke(me.comm, 1));
    NCCL_OK(ncclCommRevoke(me.comm, NCCL_REVOKE_DEFAULT));
    me.sync();  // what was in flight is over
    EXPECT_EQ(ncclInvalidArgument, ncclCommRevoke(me.comm, NCCL_REVOKE_DEFAULT));
    EXPECT_EQ(ncclInvalidUsage, ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    EXPECT_STREQ("AllReduce: communicator was revoked", ncclGetLastError(me.comm));
    ncclComm_t part = nullptr;
    NCCL_OK(ncclCommSplit(me.comm, 0, -me.rank, &part, nullptr));
    EXPECT_EQ(2 - me.rank, rank_in(part));
    EXPECT_EQ(3, sum_of_ranks(part, me.stream));
    int excluded[1] = {0};
    ncclComm_t smaller = nullptr;
    if (me.rank != 0) {
      NCCL_OK(ncclCommShrink(me.comm, excluded, 1, &smaller, nullptr, NCCL_SHRINK_DEFAULT));
      EXPECT_EQ(1, sum_of_ranks(smaller, me.stream));
      NCCL_OK(ncclCommDestroy(smaller));
    }
    NCCL_OK(ncclCommDestroy(part));
  });
}

// Parents before children, children before parents, and each in the middle of the other's work.
TEST_P(Children, EndInAnyOrder) {
  run_job(GetParam(), 2, [](Rank& me) {
    ncclComm_t child = nullptr;
    ncclComm_t grandchild = nullptr;
    NCCL_OK(ncclCommSplit(me.comm, 0, me.rank, &child, nullptr));
    NCCL_OK(ncclCommSplit(child, 0, me.rank, &grandchild, nullptr));
    DeviceBuffer<int> data(50000);
    NCCL_OK(ncclAllReduce(data.data, data.data, data.count, ncclInt, ncclSum, grandchild, me.stream));
    NCCL_OK(ncclCommDestroy(child));
    EXPECT_EQ(1, sum_of_ranks(grandchild, me.stream));
    NCCL_OK(ncclGroupStart());  // ends may be part of a group
    NCCL_OK(ncclCommDestroy(grandchild));
    NCCL_OK(ncclGroupEnd());
    EXPECT_EQ(ncclInvalidArgument, ncclCommDestroy(grandchild));
    EXPECT_STREQ("Error: corrupted comm object detected", ncclGetLastError(nullptr));
    EXPECT_EQ(1, sum_of_ranks(me.comm, me.stream));
  });
}

// Windows are made by all ranks together: one that does not come keeps the others, and an abort gets them out.
TEST_P(Children, ShareWindowsTheyAllRegister) {
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<int> data(1024);
    ncclWindow_t window = reinterpret_cast<ncclWindow_t>(8);
    NCCL_OK(ncclCommWindowRegister(me.comm, data.data, 0, &window, NCCL_WIN_DEFAULT));
    NCCL_OK(ncclCommWindowRegister(me.comm, nullptr, 64, &window, NCCL_WIN_DEFAULT));
    EXPECT_EQ(reinterpret_cast<ncclWindow_t>(8), window);  // untouched
    NCCL_OK(ncclCommWindowRegister(me.comm, data.data, 4096, &window, NCCL_WIN_COLL_SYMMETRIC));
    EXPECT_NE(nullptr, window);
    NCCL_OK(ncclCommWindowDeregister(me.comm, window));
    EXPECT_EQ(ncclInvalidUsage, ncclCommWindowDeregister(me.comm, window));
    NCCL_OK(ncclCommWindowDeregister(me.comm, nullptr));
    NCCL_OK(ncclCommWindowDeregister(nullptr, nullptr));

    void* first = nullptr;
    void* second = nullptr;
    NCCL_OK(ncclCommRegister(me.comm, data.data, 4096, &first));
    NCCL_OK(ncclCommRegister(me.comm, data.data, 4096, &second));
    EXPECT_EQ(first, second);
    NCCL_OK(ncclCommDeregister(me.comm, first));
    NCCL_OK(ncclCommDeregister(me.comm, second));
    EXPECT_EQ(ncclInvalidUsage, ncclCommDeregister(me.comm, second));
    NCCL_OK(ncclCommDeregister(me.comm, nullptr));
  });
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(GetParam(), 2, [&](int rank) {
    Rank me(rank, 2, id);
    DeviceBuffer<int> data(64);
    std::thread other;
    if (rank == 0) {
      other = std::thread([&] {
        ncclWindow_t window = nullptr;
        EXPECT_EQ(ncclInternalError, ncclCommWindowRegister(me.comm, data.data, 256, &window, NCCL_WIN_DEFAULT));
        EXPECT_EQ(nullptr, window);
      });
      std::this_thread::sleep_for(milliseconds(30));
    }
    NCCL_OK(ncclCommAbort(me.comm));
    if (other.joinable()) other.join();
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Children, ::testing::Values(As::processes, As::threads),
                         [](const auto& each) { return std::string(name_of(each.param)); });

TEST(Memory, IsAllocatedAsCudaWould) {
  run_job(As::processes, 1, [](Rank&) {
    void* at = &at;
    NCCL_OK(ncclMemAlloc(&at, 0));
    EXPECT_EQ(nullptr, at);
    EXPECT_EQ(ncclUnhandledCudaError, ncclMemAlloc(nullptr, 8));
    NCCL_OK(ncclMemAlloc(&at, 100));
    NCCL_OK(ncclMemFree(at));
    NCCL_OK(ncclMemFree(nullptr));
    EXPECT_EQ(ncclUnhandledCudaError, ncclMemFree(&at));
  });
}

}  // namespace
}  // namespace lockstep::test
