// SPDX-License-Identifier: MIT
//
// Hangs that are true hangs: what never ends with NCCL must not end here, must cost no CPU meanwhile, must be escaped
// by an abort, and must leave nothing behind when the process is killed.

#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

using Body = std::function<void(Rank&)>;
constexpr milliseconds kLongEnough(300);

double cpu_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// How many ranks came to the point where they wait for their stream; in memory shared with the children.
std::atomic<int>& waiting_ranks() {
  static auto* const count = static_cast<std::atomic<int>*>(
      mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *count;
}

// Calls that some ranks make and others do not, or make differently. No call may block; every rank in `stuck` must
// still wait for its stream after a while; the rest must have ended.
void expect_stuck(int n, const std::vector<int>& stuck, const Body& body) {
  waiting_ranks().store(0);
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  std::vector<Child> ranks;
  for (int rank = 0; rank < n; ++rank)
    ranks.emplace_back([&, rank] {
      Rank me(rank, n, id);
      body(me);
      waiting_ranks().fetch_add(1);
      me.sync();
    });
  const auto deadline = Clock::now() + milliseconds(10000);
  for (int rank = 0; rank < n; ++rank) {
    if (std::find(stuck.begin(), stuck.end(), rank) != stuck.end()) continue;
    ASSERT_TRUE(ranks[static_cast<size_t>(rank)].ended_by(deadline)) << "rank " << rank << " should have ended";
    EXPECT_EQ(0, ranks[static_cast<size_t>(rank)].status());
  }
  std::this_thread::sleep_for(kLongEnough);
  EXPECT_EQ(n, waiting_ranks().load());
  for (const int rank : stuck)
    EXPECT_FALSE(ranks[static_cast<size_t>(rank)].ended_by(Clock::now())) << "rank " << rank << " should wait for ever";
}

void all_reduce(Rank& me, size_t count = 1000, ncclDataType_t type = ncclFloat, ncclRedOp_t op = ncclSum) {
  static thread_local void* data = nullptr;
  if (data == nullptr) CUDA_OK(cudaMalloc(&data, 1 << 20));
  NCCL_OK(ncclAllReduce(data, data, count, type, op, me.comm, me.stream));
}
void broadcast(Rank& me, int root) {
  void* data = nullptr;
  CUDA_OK(cudaMalloc(&data, 4096));
  NCCL_OK(ncclBroadcast(data, data, 1000, ncclFloat, root, me.comm, me.stream));
}

TEST(Hang, RankThatNeverCalls) {
  expect_stuck(3, {0, 1}, [](Rank& me) {
    if (me.rank != 2) all_reduce(me);
  });
}
TEST(Hang, RankThatNeverCallsALargeOne) {
  expect_stuck(3, {0, 2}, [](Rank& me) {
    if (me.rank != 1) all_reduce(me, 200000);
  });
}
TEST(Hang, AnotherFunction) {
  expect_stuck(2, {0, 1}, [](Rank& me) {
    if (me.rank == 0)
      all_reduce(me);
    else
      broadcast(me, 0);
  });
}
TEST(Hang, AnotherRoot) {
  expect_stuck(3, {0, 1, 2}, [](Rank& me) { broadcast(me, me.rank == 1 ? 1 : 0); });
}
TEST(Hang, CountsOfDifferentChunks) {
  expect_stuck(2, {0, 1}, [](Rank& me) { all_reduce(me, me.rank == 0 ? 4096 : 4097); });
}
TEST(Hang, CountsOfTheSameChunksOnlyWhenToldTo) {
  setenv("LOCKSTEP_HOST_MISMATCH", "hang", 1);
  expect_stuck(2, {0, 1}, [](Rank& me) { all_reduce(me, me.rank == 0 ? 1000 : 1001); });
  unsetenv("LOCKSTEP_HOST_MISMATCH");
}
TEST(Hang, OppositeOrderOnOneStream) {
  ncclUniqueId other;
  NCCL_OK(ncclGetUniqueId(&other));
  expect_stuck(2, {0, 1}, [&](Rank& me) {
    ncclComm_t second = nullptr;
    NCCL_OK(ncclCommInitRank(&second, 2, other, me.rank));
    void* data = nullptr;
    CUDA_OK(cudaMalloc(&data, 4096));
    for (const ncclComm_t comm : {me.rank == 0 ? me.comm : second, me.rank == 0 ? second : me.comm})
      NCCL_OK(ncclAllReduce(data, data, 1000, ncclFloat, ncclSum, comm, me.stream));
  });
}
TEST(Hang, BothSendFirst) {
  expect_stuck(2, {0, 1}, [](Rank& me) {
    int* data = nullptr;
    CUDA_OK(cudaMalloc(&data, 64));
    NCCL_OK(ncclSend(data, 1, ncclInt, 1 - me.rank, me.comm, me.stream));
    NCCL_OK(ncclRecv(data, 1, ncclInt, 1 - me.rank, me.comm, me.stream));
  });
}
TEST(Hang, LargerReceive) {
  expect_stuck(2, {1}, [](Rank& me) {
    float* data = nullptr;
    CUDA_OK(cudaMalloc(&data, 64));
    if (me.rank == 0)
      NCCL_OK(ncclSend(data, 3, ncclFloat, 1, me.comm, me.stream));
    else
      NCCL_OK(ncclRecv(data, 5, ncclFloat, 0, me.comm, me.stream));
  });
}

// --- what ends although it is wrong
// ----------------------------------------------------------------------------------------

TEST(Mismatch, OfCountsWithinOneChunkEndsWithAWrongTail) {
  run_job(As::processes, 2, [](Rank& me) {
    DeviceBuffer<int> data(300);
    for (size_t i = 0; i < data.count; ++i) data[i] = 1;
    NCCL_OK(ncclAllReduce(data.data, data.data, me.rank == 0 ? 200 : 300, ncclInt, ncclSum, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(2, data[199]);
    EXPECT_EQ(1, data[200]);
    DeviceBuffer<int> large(4000);  // one of them rides in the descriptor, the other does not
    for (size_t i = 0; i < large.count; ++i) large[i] = 1;
    NCCL_OK(ncclAllReduce(large.data, large.data, me.rank == 0 ? 200 : 4000, ncclInt, ncclSum, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(2, large[199]);
    EXPECT_EQ(1, large[200]);
  });
}
TEST(Mismatch, OfCountsNeverReadsBeyondAPeersBuffer) {
  setenv("LOCKSTEP_HOST_MISMATCH", "finish", 1);
  for (const size_t small : {1, 1000}) {
    run_job(As::processes, 3, [small](Rank& me) {
      const size_t count = me.rank == 1 ? small : 100000;
      DeviceBuffer<int> send(count * 3);
      DeviceBuffer<int> recv(count * 3);
      NCCL_OK(ncclReduceScatter(send.data, recv.data, count, ncclInt, ncclSum, me.comm, me.stream));
      NCCL_OK(ncclAllGather(send.data, recv.data, count, ncclInt, me.comm, me.stream));
      NCCL_OK(ncclBroadcast(send.data, recv.data, count, ncclInt, 1, me.comm, me.stream));
      NCCL_OK(ncclReduce(send.data, recv.data, count, ncclInt, ncclSum, 1, me.comm, me.stream));
      NCCL_OK(ncclAllReduce(send.data, recv.data, count, ncclInt, ncclSum, me.comm, me.stream));
      me.sync();
    });
  }
  unsetenv("LOCKSTEP_HOST_MISMATCH");
}
TEST(Mismatch, OfTypeOrOperatorEnds) {
  run_job(As::processes, 2, [](Rank& me) {
    for (const size_t count : {10, 5000}) {
      all_reduce(me, count, me.rank == 0 ? ncclFloat : ncclInt);
      all_reduce(me, count, ncclFloat, me.rank == 0 ? ncclSum : ncclMax);
    }
    me.sync();
  });
}

// --- cost and escape
// -------------------------------------------------------------------------------------------------------

TEST(Hang, CostsNoCpu) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      Rank me(rank, 2, id);
      if (rank == 0) std::this_thread::sleep_for(milliseconds(60000));
      all_reduce(me);
      std::thread waiter([&] { me.sync(); });
      std::this_thread::sleep_for(milliseconds(500));
      const double begin = cpu_seconds();
      std::this_thread::sleep_for(milliseconds(2000));
      EXPECT_LT(cpu_seconds() - begin, 0.04) << "more than 2 % of a core";
      waiter.detach();
    });
  EXPECT_TRUE(ranks[1].ended_by(Clock::now() + milliseconds(20000)));
  EXPECT_EQ(0, ranks[1].status());
}

TEST(Idle, CostsNoCpu) {
  run_job(As::processes, 2, [](Rank& me) {
    all_reduce(me);
    me.sync();
    std::this_thread::sleep_for(milliseconds(200));
    const double begin = cpu_seconds();
    std::this_thread::sleep_for(milliseconds(1000));
    EXPECT_LT(cpu_seconds() - begin, 0.005);
  });
}

class Abort : public ::testing::TestWithParam<As> {};

TEST_P(Abort, GetsWaitersOut) {
  run_ranks(GetParam(), 2, [id = [] {
              ncclUniqueId made;
              EXPECT_EQ(ncclSuccess, ncclGetUniqueId(&made));
              return made;
            }()](int rank) {
    Rank me(rank, 2, id);
    if (rank == 0) {
      for (int i = 0; i < 5; ++i) all_reduce(me, i % 2 == 0 ? 100 : 100000);
      std::thread aborter([&] {
        std::this_thread::sleep_for(milliseconds(100));
        EXPECT_EQ(ncclSuccess, ncclCommAbort(me.comm));
      });
      me.sync();
      EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
      aborter.join();
      EXPECT_EQ(ncclInvalidArgument, ncclCommDestroy(me.comm));
    } else {
      std::this_thread::sleep_for(milliseconds(200));
      NCCL_OK(ncclCommAbort(me.comm));
    }
    CUDA_OK(cudaStreamDestroy(me.stream));
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Abort, ::testing::Values(As::processes, As::threads),
                         [](const auto& each) { return std::string(name_of(each.param)); });

TEST(Kill, OfAPeerHangsTheOthersUntilTheyAbort) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      Rank me(rank, 2, id);
      if (rank == 1) {
        for (;;) all_reduce(me, 50000), me.sync();
      }
      std::atomic<bool> out{false};
      std::thread waiter([&] {
        for (int i = 0; i < 1000000 && !out.load(); ++i) {
          all_reduce(me, 50000);
          me.sync();
        }
        out.store(true);
      });
      std::this_thread::sleep_for(milliseconds(600));
      EXPECT_FALSE(out.load());
      out.store(true);
      NCCL_OK(ncclCommAbort(me.comm));
      waiter.join();
    });
  std::this_thread::sleep_for(milliseconds(200));
  ranks[1].kill_now();
  EXPECT_TRUE(ranks[0].ended_by(Clock::now() + milliseconds(20000)));
  EXPECT_EQ(0, ranks[0].status());
}

TEST(Kill, LeavesDestroyOfAnIdleCommunicatorAlone) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      Rank me(rank, 2, id);
      all_reduce(me, 50000);
      me.sync();
      if (rank == 1) raise(SIGKILL);
      std::this_thread::sleep_for(milliseconds(200));
      me.close();
    });
  EXPECT_TRUE(ranks[0].ended_by(Clock::now() + milliseconds(20000)));
  EXPECT_EQ(0, ranks[0].status());
}

TEST(Kill, LeavesNothingInTheFileSystem) {
  const auto names = [](const char* folder) {
    std::vector<std::string> found;
    if (DIR* dir = opendir(folder)) {
      while (const dirent* entry = readdir(dir))
        if (std::strstr(entry->d_name, "lockstep-host") != nullptr) found.emplace_back(entry->d_name);
      closedir(dir);
    }
    return found;
  };
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      Rank me(rank, 2, id);
      for (;;) all_reduce(me, 50000), me.sync();
    });
  std::this_thread::sleep_for(milliseconds(100));
  for (Child& rank : ranks) rank.kill_now();
  EXPECT_TRUE(names("/dev/shm").empty());
  EXPECT_TRUE(names("/tmp").empty());
}

// --- making a communicator
// -------------------------------------------------------------------------------------------------

TEST(Init, WaitsForAMissingRankWithoutCpuAndDiesWhenKilled) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  Child rank([&] {
    std::thread([] {
      std::this_thread::sleep_for(milliseconds(300));
      const double begin = cpu_seconds();
      std::this_thread::sleep_for(milliseconds(1000));
      _exit(cpu_seconds() - begin < 0.02 ? 0 : 3);
    }).detach();
    ncclComm_t comm = nullptr;
    ncclCommInitRank(&comm, 2, id, 0);
    _exit(4);  // it must never return
  });
  EXPECT_TRUE(rank.ended_by(Clock::now() + milliseconds(10000)));
  EXPECT_EQ(0, WEXITSTATUS(rank.status()));
}

// What comes through the pipe until `wanted` has come, the pipe ends, or it is time.
std::string read_until(int pipe, const char* wanted, Clock::time_point deadline) {
  std::string text;
  char buffer[512];
  while (text.find(wanted) == std::string::npos && Clock::now() < deadline) {
    pollfd ready{pipe, POLLIN, 0};
    if (poll(&ready, 1, 100) <= 0) continue;
    const ssize_t got = read(pipe, buffer, sizeof buffer);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

TEST(Init, WithARankTwiceOrAWrongCountHangsAndWarns) {
  for (const bool twice : {true, false}) {
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    int output[2];
    ASSERT_EQ(0, pipe(output));
    setenv("NCCL_DEBUG", "WARN", 1);
    std::vector<Child> ranks;
    for (int i = 0; i < 2; ++i)
      ranks.emplace_back([&, i] {
        dup2(output[1], STDOUT_FILENO);
        ncclComm_t comm = nullptr;
        ncclCommInitRank(&comm, twice || i == 0 ? 2 : 3, id, twice ? 1 : i);
      });
    unsetenv("NCCL_DEBUG");
    close(output[1]);
    const char* const wanted = twice ? "has already checked in" : "mismatch in info from procs";
    const std::string text = read_until(output[0], wanted, Clock::now() + milliseconds(30000));
    EXPECT_TRUE(ranks[0].still_runs_after(kLongEnough));
    EXPECT_TRUE(ranks[1].still_runs_after(milliseconds(0)));
    for (Child& rank : ranks) rank.kill_now();
    close(output[0]);
    EXPECT_NE(std::string::npos, text.find("NCCL WARN Bootstrap")) << text;
    EXPECT_NE(std::string::npos, text.find(wanted)) << text;
  }
}

TEST(Init, WithAForeignOrDeadIdSaysSo) {
  ncclUniqueId dead;
  {
    int channel[2];
    ASSERT_EQ(0, pipe(channel));
    Child maker([&] {
      ncclUniqueId id;
      ncclGetUniqueId(&id);
      EXPECT_EQ(static_cast<ssize_t>(sizeof id), write(channel[1], &id, sizeof id));
    });
    ASSERT_EQ(static_cast<ssize_t>(sizeof dead), read(channel[0], &dead, sizeof dead));
    EXPECT_TRUE(maker.ended_by(Clock::now() + milliseconds(5000)));
    close(channel[0]);
    close(channel[1]);
  }
  std::vector<Child> child;
  child.emplace_back([&] {
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclSystemError, ncclCommInitRank(&comm, 1, dead, 0));
    EXPECT_NE(nullptr, std::strstr(ncclGetLastError(nullptr), "has ended")) << ncclGetLastError(nullptr);
    const ncclUniqueId foreign{};
    EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&comm, 1, foreign, 0));
    EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&comm, 2, dead, 2));
    EXPECT_STREQ("Invalid rank requested : 2/2", ncclGetLastError(nullptr));
  });
  expect_all_end_well(child);
}

}  // namespace
}  // namespace lockstep::test
