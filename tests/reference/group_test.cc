// SPDX-License-Identifier: MIT
//
// Groups, and the order and size rules of what stands in them, beyond what the other tests use them for.

#include <cstring>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

TEST(Group, CanBeSimulated) {
  run_job(As::processes, 2, [](Rank& me) {
    DeviceBuffer<int> data(1);
    data[0] = 1;
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    NCCL_OK(ncclGroupSimulateEnd(&info));
    EXPECT_GT(info.estimatedTime, 0);
    me.sync();
    EXPECT_EQ(1, data[0]);  // nothing was launched, on no rank
    EXPECT_EQ(ncclInvalidUsage, ncclGroupEnd());
    NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(2, data[0]);
  });
}

TEST(Group, ChecksItsMessagesToOneself) {
  run_job(As::processes, 1, [](Rank& me) {
    DeviceBuffer<int> data(8);
    for (size_t i = 0; i < 8; ++i) data[i] = static_cast<int>(i);
    EXPECT_EQ(ncclInvalidUsage, ncclSend(&data[0], 4, ncclInt, 0, me.comm, me.stream));
    EXPECT_STREQ("Trying to send to self without a matching recv", ncclGetLastError(nullptr));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclRecv(&data[0], 4, ncclInt, 0, me.comm, me.stream));
    EXPECT_EQ(ncclInvalidUsage, ncclGroupEnd());
    EXPECT_STREQ("Trying to recv to self without a matching send", ncclGetLastError(nullptr));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclRecv(&data[4], 4, ncclInt, 0, me.comm, me.stream));
    NCCL_OK(ncclSend(&data[0], 4, ncclInt, 0, me.comm, me.stream));
    NCCL_OK(ncclGroupEnd());
    me.sync();
    EXPECT_EQ(3, data[7]);
  });
}

// Gather and scatter in place, and the blocks of all ranks where they belong.
TEST(Group, OfAllToAllGatherAndScatterInOneGo) {
  run_job(As::threads, 3, [](Rank& me) {
    const auto n = static_cast<size_t>(me.n);
    const auto rank = static_cast<size_t>(me.rank);
    DeviceBuffer<int> gathered(n);
    DeviceBuffer<int> scattered(n);
    DeviceBuffer<int> from(n);
    DeviceBuffer<int> to(n);
    for (size_t i = 0; i < n; ++i) {
      gathered[i] = -1;
      scattered[i] = static_cast<int>(100 + i);
      from[i] = static_cast<int>(10 * rank + i);
    }
    gathered[rank] = me.rank;
    NCCL_OK(ncclGroupStart());
    // In place at the root: its own block lies where it belongs already.
    NCCL_OK(ncclGather(&gathered[rank], gathered.data, 1, ncclInt, 1, me.comm, me.stream));
    NCCL_OK(
        ncclScatter(scattered.data, me.rank == 2 ? &scattered[2] : &scattered[0], 1, ncclInt, 2, me.comm, me.stream));
    NCCL_OK(ncclAlltoAll(from.data, to.data, 1, ncclInt, me.comm, me.stream));
    NCCL_OK(ncclGroupEnd());
    me.sync();
    for (size_t i = 0; i < n; ++i) {
      if (me.rank == 1) {
        EXPECT_EQ(static_cast<int>(i), gathered[i]);
      }
      EXPECT_EQ(static_cast<int>(10 * i + rank), to[i]);
    }
    EXPECT_EQ(100 + me.rank, me.rank == 2 ? scattered[2] : scattered[0]);
  });
}

// The whole group is dropped whoever of its calls was wrong: making communicators, too.
TEST(Group, DropsItsCommunicatorsWithTheRest) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  run_job(As::processes, 1, [&](Rank& me) {
    ncclComm_t made = nullptr;
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclCommSplit(me.comm, 0, 0, &made, nullptr));
    int none[1] = {0};
    ncclComm_t other = nullptr;
    EXPECT_EQ(ncclInvalidArgument, ncclCommShrink(me.comm, none, 0, &other, nullptr, NCCL_SHRINK_DEFAULT));
    EXPECT_EQ(ncclInvalidArgument, ncclGroupEnd());
    EXPECT_EQ(nullptr, made);
    EXPECT_EQ(ncclInvalidArgument, ncclCommShrink(me.comm, nullptr, 1, &other, nullptr, NCCL_SHRINK_DEFAULT));
    EXPECT_STREQ("ncclCommShrink : excludeRanksList argument is NULL", ncclGetLastError(nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclCommSplit(nullptr, 0, 0, &other, nullptr));
    EXPECT_STREQ("ncclCommSplit : comm argument is NULL", ncclGetLastError(nullptr));
    NCCL_OK(ncclCommSplit(me.comm, 0, 0, &made, nullptr));
    NCCL_OK(ncclCommDestroy(made));
  });
}

}  // namespace
}  // namespace lockstep::test
