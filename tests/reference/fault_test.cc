// SPDX-License-Identifier: MIT
//
// LOCKSTEP_HOST_FAULT: each mistake happens at the call it was set for, on the rank it was set for, and nowhere else.

#include <csignal>
#include <cstring>
#include <string>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

class Setting {
 public:
  explicit Setting(const char* faults) { setenv("LOCKSTEP_HOST_FAULT", faults, 1); }
  ~Setting() { unsetenv("LOCKSTEP_HOST_FAULT"); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
};

constexpr milliseconds kLongEnough(150);

// Rank r contributes r + 1 + i to element i.
std::vector<int> sums_of(Rank& me, size_t count = 4) {
  DeviceBuffer<int> data(2 * count);
  for (size_t i = 0; i < count; ++i) data[i] = me.rank + 1 + static_cast<int>(i);
  EXPECT_EQ(ncclSuccess, ncclAllReduce(data.data, &data[count], count, ncclInt, ncclSum, me.comm, me.stream));
  me.sync();
  return {&data[count], &data[count] + count};
}
int sum(int n, int i) { return n * (n + 1) / 2 + n * i; }

class Fault : public ::testing::TestWithParam<As> {};

// The second call of rank 1 does nothing there: its third meets the other's second.
TEST_P(Fault, SkipsACall) {
  const Setting setting("skip:rank=1,call=2");
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<int> data(3);
    for (size_t i = 0; i < 3; ++i) data[i] = static_cast<int>(i) + 1;
    const int calls = me.rank == 0 ? 2 : 3;
    for (int i = 0; i < calls; ++i)
      NCCL_OK(ncclAllReduce(&data[static_cast<size_t>(i)], &data[static_cast<size_t>(i)], 1, ncclInt, ncclSum, me.comm,
                            me.stream));
    me.sync();
    EXPECT_EQ(2, data[0]);
    EXPECT_EQ(me.rank == 0 ? 5 : 2, data[1]);
    EXPECT_EQ(me.rank == 0 ? 3 : 5, data[2]);
  });
}

TEST_P(Fault, DelaysACallWhereItIsMade) {
  const Setting setting("delay:rank=0,call=1,seconds=0.2");
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<int> data(1);
    const auto before = Clock::now();
    NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    if (me.rank == 0) {
      EXPECT_GE(Clock::now() - before, milliseconds(200));
    }
    me.sync();
  });
}

TEST_P(Fault, ChangesTheOrderOfTwoCalls) {
  const Setting setting("reorder:rank=1,call=1;reorder:rank=1,call=4,fn=AllReduce");
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<int> data(5);
    for (size_t i = 0; i < 5; ++i) data[i] = static_cast<int>(i) + 1;
    const auto reduce = [&](size_t i) {
      NCCL_OK(ncclAllReduce(&data[i], &data[i], 1, ncclInt, ncclSum, me.comm, me.stream));
    };
    reduce(0);
    reduce(1);
    reduce(2);
    me.sync();
    EXPECT_EQ(3, data[0]);  // 1 + 2, and 2 + 1
    EXPECT_EQ(3, data[1]);
    EXPECT_EQ(6, data[2]);
    NCCL_OK(ncclGroupStart());
    reduce(3);  // held back, but not longer than the group
    NCCL_OK(ncclGroupEnd());
    me.sync();
    EXPECT_EQ(8, data[3]);
  });
}

TEST_P(Fault, ChangesArguments) {
  const Setting setting(
      "op:rank=0,call=1,value=max;op:rank=1,call=1,value=max;count:rank=0,call=2,value=2;count:rank=1,call=2,value=2;"
      "root:rank=0,call=3,value=1;root:rank=1,call=3,value=1;dtype:rank=0,call=4,value=int8;"
      "dtype:rank=1,call=4,value=int8;root:rank=1,call=5,value=9");
  run_job(GetParam(), 2, [](Rank& me) {
    EXPECT_EQ((std::vector<int>{2, 3, 4, 5}), sums_of(me));
    DeviceBuffer<int> data(4);
    for (size_t i = 0; i < 4; ++i) data[i] = me.rank == 0 ? 255 : 1;
    NCCL_OK(ncclAllReduce(data.data, data.data, 4, ncclInt, ncclSum, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(256, data[1]);
    EXPECT_EQ(me.rank == 0 ? 255 : 1, data[2]);
    NCCL_OK(ncclBroadcast(&data[2], &data[2], 1, ncclInt, 0, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(1, data[2]);
    data[3] = me.rank == 0 ? 255 : 1;
    NCCL_OK(ncclAllReduce(&data[3], &data[3], 1, ncclInt, ncclSum, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(0, data[3] & 0xff);  // one byte: 255 + 1 wraps
    if (me.rank == 1) {
      EXPECT_EQ(ncclInvalidArgument, ncclBroadcast(&data[2], &data[2], 1, ncclInt, 0, me.comm, me.stream));
      EXPECT_STREQ("Broadcast : invalid root 9 (root should be in the 0..2 range)", ncclGetLastError(nullptr));
    }
  });
}

TEST_P(Fault, SpoilsOneElementOfOneRanksResult) {
  const Setting setting(
      "corrupt:rank=1,call=1,element=2;corrupt:rank=0,call=2,element=1,bit=0;corrupt:rank=0,call=3,element=3");
  run_job(GetParam(), 2, [](Rank& me) {
    for (const size_t count : {size_t{4}, size_t{20000}}) {
      const std::vector<int> got = sums_of(me, count);
      for (size_t i = 0; i < count; ++i) {
        int want = sum(2, static_cast<int>(i));
        if (count == 4 && me.rank == 1 && i == 2) want ^= 1 << 30;
        if (count != 4 && me.rank == 0 && i == 1) want ^= 1;
        ASSERT_EQ(want, got[i]) << i;
      }
    }
    // Of an all-to-all: the block of rank 1, its second element.
    DeviceBuffer<int> data(8);
    for (size_t i = 0; i < 4; ++i) data[i] = 7;
    NCCL_OK(ncclAlltoAll(data.data, &data[4], 2, ncclInt, me.comm, me.stream));
    me.sync();
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(me.rank == 0 && i == 3 ? 7 ^ (1 << 30) : 7, data[4 + i]) << i;
  });
}

TEST_P(Fault, FailsACall) {
  const Setting setting("fail:rank=1,call=2,fn=AllReduce,code=system-error;fail:rank=0,call=3,code=5");
  run_job(GetParam(), 2, [](Rank& me) {
    EXPECT_EQ(sum(2, 0), sums_of(me)[0]);
    DeviceBuffer<int> data(1);
    NCCL_OK(ncclBroadcast(data.data, data.data, 1, ncclInt, 0, me.comm, me.stream));
    me.sync();
    const ncclResult_t result = ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream);
    EXPECT_EQ(me.rank == 1 ? ncclSystemError : ncclInvalidUsage, result);
    EXPECT_STREQ("AllReduce : made to fail by LOCKSTEP_HOST_FAULT", ncclGetLastError(nullptr));
    EXPECT_EQ(sum(2, 0), sums_of(me)[0]);
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Fault, ::testing::Values(As::processes, As::threads),
                         [](const auto& each) { return std::string(name_of(each.param)); });

// The rank is that of the first communicator, whatever it is in the others; RANK says it for all.
TEST(FaultRank, IsTheWorldRank) {
  const auto run = [] {
    run_job(As::processes, 2, [](Rank& me) {
      ncclComm_t swapped = nullptr;
      NCCL_OK(ncclCommSplit(me.comm, 0, -me.rank, &swapped, nullptr));
      DeviceBuffer<int> data(1);
      const ncclResult_t result = ncclBroadcast(data.data, data.data, 1, ncclInt, 0, swapped, me.stream);
      if (std::getenv("RANK") != nullptr) {
        EXPECT_EQ(ncclRemoteError, result);
      } else {
        EXPECT_EQ(me.rank == 1 ? ncclRemoteError : ncclSuccess, result);
      }
      NCCL_OK(ncclCommAbort(swapped));
    });
  };
  {
    const Setting setting("fail:rank=1,call=1,code=6");
    run();
  }
  const Setting setting("fail:rank=5,call=1,code=6");
  setenv("RANK", "5", 1);
  run();
  unsetenv("RANK");
}

TEST(FaultProcess, IsKilledOrStopped) {
  for (const bool killed : {true, false}) {
    const Setting setting(killed ? "kill:rank=1,call=2" : "stop:rank=1,call=2");
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    std::vector<Child> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.emplace_back([&, rank] {
        Rank me(rank, 2, id);
        EXPECT_EQ(sum(2, 1), sums_of(me)[1]);
        sums_of(me);
        me.close();
      });
    if (killed) {
      EXPECT_TRUE(ranks[1].ended_by(Clock::now() + milliseconds(20000)));
      EXPECT_TRUE(WIFSIGNALED(ranks[1].status()) && WTERMSIG(ranks[1].status()) == SIGKILL);
      EXPECT_TRUE(ranks[0].still_runs_after(kLongEnough));
      continue;
    }
    int status = 0;
    ASSERT_EQ(ranks[1].pid(), waitpid(ranks[1].pid(), &status, WUNTRACED));
    EXPECT_TRUE(WIFSTOPPED(status));
    EXPECT_TRUE(ranks[0].still_runs_after(kLongEnough));
    kill(ranks[1].pid(), SIGCONT);
    expect_all_end_well(ranks);
  }
}

TEST(FaultSetting, ThatIsWrongStopsEverybodyWithASentence) {
  const std::pair<const char*, const char*> wrong[] = {
      {"drop:rank=1,call=2", "in 'drop:rank=1,call=2': 'drop' is no action; expected one of skip delay reorder"},
      {"skip:call=2", "rank=R is missing"},
      {"skip:rank=1", "call=N is missing"},
      {"skip:rank=1,call=0", "'call=0' is not understood"},
      {"skip:rank=1,call=2,value=3", "'value=3' is not understood by skip"},
      {"delay:rank=1,call=2", "seconds=... is missing"},
      {"delay:rank=1,call=2,seconds=soon", "'seconds=soon' is not understood"},
      {"delay:rank=1,call=2,seconds=1e99", "'seconds=1e99' is not understood"},
      {"count:rank=1,call=2,value=99999999999999999999", "'value=99999999999999999999' is not understood"},
      {"op:rank=1,call=2,value=median", "'value=median' is not understood"},
      {"kill:rank=0,call=1,fn=CommSplit", "'fn=CommSplit' is not understood"},
      {"skip:rank=0,call=1;nonsense", "in 'nonsense': 'nonsense' is no action"}};
  for (const auto& [value, text] : wrong) {
    const Setting setting(value);
    run_ranks(As::processes, 1, [expected = text](int) {
      ncclUniqueId id;
      NCCL_OK(ncclGetUniqueId(&id));
      ncclComm_t comm = nullptr;
      ::testing::internal::CaptureStderr();
      EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&comm, 1, id, 0));
      const std::string said = ::testing::internal::GetCapturedStderr();
      EXPECT_EQ(0u, said.find("lockstep host runtime: LOCKSTEP_HOST_FAULT: in '")) << said;
      EXPECT_NE(std::string::npos, said.find(expected)) << said;
    });
  }
}

}  // namespace
}  // namespace lockstep::test
