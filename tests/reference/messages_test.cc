// SPDX-License-Identifier: MIT
//
// Send and receive: matched by order and bytes between two ranks, in groups and out of them.

#include <numeric>
#include <string>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

class Messages : public ::testing::TestWithParam<As> {};

TEST_P(Messages, GoRoundARing) {
  for (const int n : {2, 3, 4}) {
    run_job(GetParam(), n, [](Rank& me) {
      for (const size_t count : {0, 1, 1000, 200003}) {
        DeviceBuffer<int> out(count + 1);
        DeviceBuffer<int> in(count + 1);
        for (size_t i = 0; i < count; ++i) out[i] = me.rank * 1000 + static_cast<int>(i % 977);
        NCCL_OK(ncclGroupStart());
        NCCL_OK(ncclSend(out.data, count, ncclInt, (me.rank + 1) % me.n, me.comm, me.stream));
        NCCL_OK(ncclRecv(in.data, count, ncclInt, (me.rank + me.n - 1) % me.n, me.comm, me.stream));
        NCCL_OK(ncclGroupEnd());
        me.sync();
        const int from = (me.rank + me.n - 1) % me.n;
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(from * 1000 + static_cast<int>(i % 977), in[i]) << i;
      }
    });
  }
}

TEST_P(Messages, OfOnePairAndDirectionKeepTheirOrder) {
  run_job(GetParam(), 2, [](Rank& me) {
    constexpr int kMessages = 50;
    DeviceBuffer<int> data(kMessages);
    for (int i = 0; i < kMessages; ++i) data[static_cast<size_t>(i)] = me.rank == 0 ? i * i : -1;
    for (const bool grouped : {false, true}) {
      if (grouped) NCCL_OK(ncclGroupStart());
      for (int i = 0; i < kMessages; ++i) {
        if (me.rank == 0)
          NCCL_OK(ncclSend(&data[static_cast<size_t>(i)], 1, ncclInt, 1, me.comm, me.stream));
        else
          NCCL_OK(ncclRecv(&data[static_cast<size_t>(i)], 1, ncclInt, 0, me.comm, me.stream));
      }
      if (grouped) NCCL_OK(ncclGroupEnd());
      me.sync();
      for (int i = 0; i < kMessages; ++i) ASSERT_EQ(i * i, data[static_cast<size_t>(i)]);
    }
  });
}

// Receives in the other order of peers than the sends arrive: within a group that must not matter.
TEST_P(Messages, ToDifferentPeersAdvanceIndependentlyInAGroup) {
  run_job(GetParam(), 3, [](Rank& me) {
    DeviceBuffer<int> data(4);
    if (me.rank == 0) {
      NCCL_OK(ncclGroupStart());
      NCCL_OK(ncclRecv(&data[1], 1, ncclInt, 1, me.comm, me.stream));  // comes last
      NCCL_OK(ncclRecv(&data[2], 1, ncclInt, 2, me.comm, me.stream));
      NCCL_OK(ncclSend(&data[0], 1, ncclInt, 1, me.comm, me.stream));
      NCCL_OK(ncclGroupEnd());
      me.sync();
      EXPECT_EQ(11, data[1]);
      EXPECT_EQ(22, data[2]);
    } else if (me.rank == 1) {
      data[0] = 11;
      NCCL_OK(ncclRecv(&data[1], 1, ncclInt, 2, me.comm, me.stream));  // rank 2 sends it after its message to rank 0
      NCCL_OK(ncclGroupStart());
      NCCL_OK(ncclSend(&data[0], 1, ncclInt, 0, me.comm, me.stream));
      NCCL_OK(ncclRecv(&data[2], 1, ncclInt, 0, me.comm, me.stream));
      NCCL_OK(ncclGroupEnd());
      me.sync();
    } else {
      data[0] = 22;
      NCCL_OK(ncclSend(&data[0], 1, ncclInt, 0, me.comm, me.stream));
      NCCL_OK(ncclSend(&data[0], 1, ncclInt, 1, me.comm, me.stream));
      me.sync();
    }
  });
}

TEST_P(Messages, MatchByBytesWhateverTheType) {
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<double> data(3);
    data[0] = me.rank == 0 ? 3.25 : 0;
    if (me.rank == 0)
      NCCL_OK(ncclSend(data.data, 3, ncclDouble, 1, me.comm, me.stream));
    else
      NCCL_OK(ncclRecv(data.data, 24, ncclInt8, 0, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(3.25, data[0]);
  });
}

TEST_P(Messages, SmallerReceiveTakesWhatItHasRoomFor) {
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<int> data(200000);
    std::iota(data.data, data.data + data.count, me.rank == 0 ? 0 : -500000);
    if (me.rank == 0)
      NCCL_OK(ncclSend(data.data, data.count, ncclInt, 1, me.comm, me.stream));
    else
      NCCL_OK(ncclRecv(data.data, 100, ncclInt, 0, me.comm, me.stream));
    me.sync();
    if (me.rank == 0) return;
    EXPECT_EQ(99, data[99]);
    EXPECT_EQ(-499900, data[100]);  // untouched
  });
}

TEST_P(Messages, SlightlyLargerReceiveWithinOnePackEnds) {
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<float> data(4);
    data[3] = -1;
    if (me.rank == 0)
      NCCL_OK(ncclSend(data.data, 3, ncclFloat, 1, me.comm, me.stream));
    else
      NCCL_OK(ncclRecv(data.data, 4, ncclFloat, 0, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(-1, data[3]);
  });
}

TEST_P(Messages, ToOneselfPairUpInOneGroup) {
  run_job(GetParam(), 2, [as = GetParam()](Rank& me) {
    DeviceBuffer<int> data(4);
    data[0] = 40 + me.rank;
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclRecv(&data[1], 1, ncclInt, me.rank, me.comm, me.stream));
    NCCL_OK(ncclSend(&data[0], 1, ncclInt, me.rank, me.comm, me.stream));
    NCCL_OK(ncclGroupEnd());
    me.sync();
    EXPECT_EQ(40 + me.rank, data[1]);
    EXPECT_EQ(ncclInvalidUsage, ncclSend(&data[0], 1, ncclInt, me.rank, me.comm, me.stream));
    if (as == As::processes) {  // the last error is the process's
      EXPECT_STREQ("Trying to send to self without a matching recv", ncclGetLastError(me.comm));
    }
    EXPECT_EQ(ncclInvalidUsage, ncclRecv(&data[0], 1, ncclInt, me.rank, me.comm, me.stream));
  });
}

// Buffers that peers cannot map, on the stack and from malloc.
TEST_P(Messages, LeaveFromOrdinaryMemory) {
  run_job(GetParam(), 2, [](Rank& me) {
    std::vector<int> large(300007, me.rank);
    int small = me.rank;
    if (me.rank == 0) {
      NCCL_OK(ncclSend(large.data(), large.size(), ncclInt, 1, me.comm, me.stream));
      NCCL_OK(ncclRecv(&small, 1, ncclInt, 1, me.comm, me.stream));
    } else {
      NCCL_OK(ncclRecv(large.data(), large.size(), ncclInt, 0, me.comm, me.stream));
      NCCL_OK(ncclSend(&small, 1, ncclInt, 0, me.comm, me.stream));
    }
    me.sync();
    EXPECT_EQ(0, large.front());
    EXPECT_EQ(0, large.back());
    EXPECT_EQ(1, small);
  });
}

TEST_P(Messages, MixWithAllToAllInOneOrder) {
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<int> send(2);
    DeviceBuffer<int> recv(2);
    send[0] = send[1] = me.rank + 5;
    const int peer = 1 - me.rank;
    NCCL_OK(ncclGroupStart());  // by hand what ncclAlltoAll does
    for (int r = 0; r < 2; ++r) {
      NCCL_OK(ncclSend(&send[static_cast<size_t>(r)], 1, ncclInt, r, me.comm, me.stream));
      NCCL_OK(ncclRecv(&recv[static_cast<size_t>(r)], 1, ncclInt, r, me.comm, me.stream));
    }
    NCCL_OK(ncclGroupEnd());
    NCCL_OK(ncclAlltoAll(send.data, recv.data, 1, ncclInt, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(peer + 5, recv[static_cast<size_t>(peer)]);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Messages, ::testing::Values(As::processes, As::threads),
                         [](const auto& each) { return std::string(name_of(each.param)); });

}  // namespace
}  // namespace lockstep::test
