// SPDX-License-Identifier: MIT
//
// Aborts and deaths at any instant: while a communicator is made, split or ended, with operations of all kinds queued,
// running or stuck. Whoever aborts gets out, whatever the others do, and nothing stays behind.
//
// Every rank has a worker, which makes two communicators and calls at random until it is told to stop or something
// fails, and an aborter, which aborts both at a moment of its own. Now and then a worker leaves out a call that its
// peers make, or never joins, so that there are true hangs to get out of.
//
// LOCKSTEP_TEST_SEEDS=N runs N cycles a case, LOCKSTEP_TEST_SEED=S begins with that of a failure.

#include <dirent.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>

#include "tests/reference/left_behind.h"
#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

constexpr int kMaxRanks = 8;
constexpr unsigned kCyclesAJob = 60;
constexpr size_t kFloats = 60'000;  // of each part of a rank's memory; beyond what one step does
constexpr size_t kParts = 7;

// Shared by all ranks and the test.
struct Board {
  std::atomic<int> arrived;
  ncclUniqueId ids[kCyclesAJob][2];  // made by the test: some never get all their ranks, and are kept by their maker
  std::atomic<int> killed;
  std::atomic<int> members;  // ranks that have their first communicator
  std::atomic<unsigned> seed[kMaxRanks];
  std::atomic<const char*> doing[kMaxRanks];  // a literal: at the same address in all children
};
Board* new_board() {
  return static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

void meet(Board& board, int n) {
  const int target = (board.arrived.fetch_add(1) / n + 1) * n;
  while (board.arrived.load() < target) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

// The communicators of a rank, as far as they are made; the aborter takes them from here. None is added after an abort.
class Handles {
 public:
  // False: aborted meanwhile.
  bool add(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    if (!aborted_) handles_.push_back(comm);
    return !aborted_;
  }
  void abort_all() {
    std::vector<ncclComm_t> handles;
    {
      const std::lock_guard lock(mutex_);
      aborted_ = true;
      handles.swap(handles_);
    }
    for (const ncclComm_t comm : handles) EXPECT_EQ(ncclSuccess, ncclCommAbort(comm));
  }

 private:
  std::mutex mutex_;
  bool aborted_ = false;
  std::vector<ncclComm_t> handles_;
};

size_t below(std::mt19937& random, size_t limit) { return random() % limit; }

// What all ranks of a cycle agree on.
struct Plan {
  bool nonblocking;
  bool splits;  // the second communicator; or it has an id of its own
  int absent;   // a rank that never joins; -1: none
  size_t calls;
};
Plan plan_of(std::mt19937& random, int n, bool deaths) {
  Plan plan{};
  plan.nonblocking = below(random, 2) == 0;
  plan.splits = below(random, 2) == 0;
  plan.absent = below(random, 5) == 0 ? static_cast<int>(below(random, static_cast<size_t>(n))) : -1;
  plan.calls = below(random, 400);
  // A call that makes a blocking communicator gives no handle to get out of it with, as long as a rank is missing.
  if (!plan.nonblocking || deaths) plan.absent = -1;
  plan.splits |= !plan.nonblocking;
  return plan;
}

class Worker {
 public:
  Worker(Board& board, int rank, int n, unsigned seed, bool deaths)
      : board_(board),
        rank_(rank),
        n_(n),
        common_(seed),
        plan_(plan_of(common_, n, deaths)),
        mine_(seed * 131 + static_cast<unsigned>(rank)) {
    board.seed[rank].store(seed);
    for (cudaStream_t& stream : streams_)
      EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    EXPECT_EQ(cudaSuccess, cudaMalloc(&data_, kParts * kFloats * sizeof(float)));
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    EXPECT_EQ(cudaSuccess, cudaFree(data_));
    for (const cudaStream_t stream : streams_) EXPECT_EQ(cudaSuccess, cudaStreamDestroy(stream));
  }

  void run(const ncclUniqueId (&ids)[2]) {
    note("makes a communicator");
    if (rank_ == plan_.absent || !make(ids[0])) return sync();
    board_.members.fetch_add(1);
    note("makes another");
    if (plan_.splits ? !split() : !make(ids[1])) return sync();
    note("calls");
    for (size_t i = 0; i < plan_.calls && !stop_.load(); ++i)
      if (call() != ncclSuccess) return sync();
    // Only blocking communicators are finalized here: the call holds the thread up until an abort.
    if (!plan_.nonblocking && below(mine_, 2) == 0) {
      note("finalizes");
      ncclCommFinalize(comms_[below(mine_, 2)]);
    }
    sync();
  }
  void abort() {
    stop_.store(true);
    handles_.abort_all();
  }

 private:
  size_t n() const { return static_cast<size_t>(n_); }
  void note(const char* doing) { board_.doing[rank_].store(doing); }

  // A nonblocking one is given to the aborter at once, a blocking one when the call is back.
  bool make(const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = plan_.nonblocking ? 0 : 1;
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRankConfig(&comm, n_, id, rank_, &config);
    return keep(comm, result);
  }
  bool split() {
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommSplit(comms_[0], 0, -rank_, &comm, nullptr);
    if (plan_.nonblocking) {  // the new handle comes when the parent is no longer at work
      if (!await(comms_[0])) return false;
      return comm != nullptr && keep(comm, ncclInProgress);
    }
    return keep(comm, result);
  }
  bool keep(ncclComm_t comm, ncclResult_t result) {
    if (comm == nullptr || (result != ncclSuccess && result != ncclInProgress)) return false;
    if (!handles_.add(comm)) {
      EXPECT_EQ(ncclSuccess, ncclCommAbort(comm));
      return false;
    }
    comms_[made_++] = comm;
    return await(comm);
  }
  bool await(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    return state == ncclSuccess;
  }

  ncclResult_t call() {
    const size_t what = below(common_, 8);
    const size_t which = below(common_, 2);
    const ncclComm_t comm = comms_[which];
    const size_t sizes[] = {2, 100, 5000, kFloats / n()};
    const size_t count = sizes[below(common_, 4)];
    const size_t queue = below(mine_, 2);
    const cudaStream_t stream = streams_[queue];
    const int next = (rank_ + 1) % n_;
    const int before = (rank_ + n_ - 1) % n_;
    // All read one part. What is written is one's own, so that nothing but the operations' order is at stake: peers may
    // read what a communicator has written until they are out of its abort too.
    float* const send = data_;
    float* const recv = data_ + (1 + 2 * which + queue) * kFloats;
    float* const scratch = data_ + (5 + queue) * kFloats;
    if (below(mine_, 150) == 0) return ncclSuccess;  // and so never meets its peers again
    if (below(mine_, 20) == 0) cudaStreamSynchronize(stream);
    switch (what) {
      case 0:
        return ncclBroadcast(send, recv, count, ncclFloat, static_cast<int>(count) % n_, comm, stream);
      case 1:
        return ncclAllGather(send, recv, count / n(), ncclFloat, comm, stream);
      case 2:
        return ncclAlltoAll(send, recv, count / n(), ncclFloat, comm, stream);
      case 3: {
        ncclGroupStart();
        const ncclResult_t sent = ncclSend(send, count, ncclFloat, next, comm, stream);
        const ncclResult_t received = ncclRecv(recv, count, ncclFloat, before, comm, stream);
        const ncclResult_t ended = ncclGroupEnd();
        return sent != ncclSuccess ? sent : received != ncclSuccess ? received : ended;
      }
      case 4:
        cudaLaunchHostFunc(
            stream, [](void*) { std::this_thread::sleep_for(std::chrono::microseconds(50)); }, nullptr);
        return ncclSuccess;
      case 5:
        cudaMemsetAsync(scratch, 0, count, stream);
        return ncclSuccess;
      default:
        return ncclAllReduce(send, recv, count, ncclFloat, ncclSum, comm, stream);
    }
  }

  // Comes back when this rank's communicators are aborted, if not before.
  void sync() {
    note("waits for its streams");
    for (const cudaStream_t stream : streams_) EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
    note("is out");
  }

  Board& board_;
  const int rank_;
  const int n_;
  std::mt19937 common_;  // draws the same on all ranks
  const Plan plan_;
  std::mt19937 mine_;
  std::array<cudaStream_t, 2> streams_{};
  float* data_ = nullptr;
  std::array<ncclComm_t, 2> comms_{};
  size_t made_ = 0;
  Handles handles_;
  std::atomic<bool> stop_{false};
};

void tell_whereabouts(const Board& board, int n) {
  for (int rank = 0; rank < n; ++rank) {
    const char* const doing = board.doing[rank].load();
    std::fprintf(stderr, "rank %d, seed %u: %s\n", rank, board.seed[rank].load(),
                 doing != nullptr ? doing : "not begun");
  }
}

unsigned number_from(const char* name, unsigned otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? static_cast<unsigned>(std::atoi(text)) : otherwise;
}

class AbortAnywhere : public ::testing::TestWithParam<std::pair<As, int>> {};

void one_cycle(Board& board, const ncclUniqueId (&ids)[2], int rank, int n, unsigned seed) {
  std::mt19937 random(seed * 17 + static_cast<unsigned>(rank));
  const int slower = kThreadSanitizer ? 10 : 1;
  const auto first = std::chrono::microseconds(std::mt19937(seed)() % 4000) * slower;  // about then; each at a moment
  const auto mine = std::chrono::microseconds(random() % 2000) * slower;               // of its own
  Worker worker(board, rank, n, seed, false);
  std::thread aborter([&] {
    std::this_thread::sleep_for(first + mine);
    worker.abort();
  });
  worker.run(ids);
  aborter.join();
  meet(board, n);  // peers may read this rank's memory until they are out too
}

void run_cycles(As as, int n, unsigned first, unsigned cycles) {
  Board& board = *new_board();
  for (unsigned cycle = 0; cycle < cycles; ++cycle)
    for (ncclUniqueId& id : board.ids[cycle]) NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(
      as, n,
      [&](int rank) {
        CUDA_OK(cudaSetDevice(rank));
        CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
        CUDA_OK(cudaLaunchHostFunc(
            cudaStreamPerThread, [](void*) {}, nullptr));  // starts what runs until the end of the process
        CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
        LeftBehind before;
        for (unsigned cycle = 0; cycle < cycles && !::testing::Test::HasFatalFailure(); ++cycle) {
          one_cycle(board, board.ids[cycle], rank, n, first + cycle);
          if (cycle == 4) before = LeftBehind::now();  // what is made once is there
          meet(board, n);
        }
        if (cycles > 5 && (as == As::processes || rank % 2 == 0)) before.expect_no_more();
        meet(board, n);
      },
      milliseconds(120'000));
  if (::testing::Test::HasFailure()) tell_whereabouts(board, n);
  munmap(&board, sizeof board);
}

TEST_P(AbortAnywhere, GetsEverybodyOutAndLeavesNothing) {
  const auto [as, n] = GetParam();
  const unsigned cycles = number_from("LOCKSTEP_TEST_SEEDS", kCyclesAJob);
  const unsigned first = number_from("LOCKSTEP_TEST_SEED", 1);
  for (unsigned at = 0; at < cycles && !HasFailure(); at += kCyclesAJob)
    run_cycles(as, n, first + at, std::min(kCyclesAJob, cycles - at));
}
INSTANTIATE_TEST_SUITE_P(Ranks, AbortAnywhere,
                         ::testing::Values(std::pair(As::processes, 3), std::pair(As::pairs, 4),
                                           std::pair(As::threads, 4)),
                         [](const auto& each) {
                           return std::string(name_of(each.param.first)) + std::to_string(each.param.second);
                         });

// --- deaths

std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> found;
  if (DIR* dir = opendir(folder)) {
    while (const dirent* entry = readdir(dir))
      if (std::strstr(entry->d_name, "lockstep-host") != nullptr) found.emplace_back(entry->d_name);
    closedir(dir);
  }
  return found;
}

// A rank whose peer is going to be killed; it aborts some time after that.
void survive(Board& board, int rank, int n, unsigned seed) {
  CUDA_OK(cudaSetDevice(rank));
  Worker worker(board, rank, n, seed, true);
  std::thread aborter([&] {
    while (board.killed.load() == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    std::this_thread::sleep_for(std::chrono::microseconds(std::mt19937(seed + static_cast<unsigned>(rank))() % 3000));
    worker.abort();
  });
  worker.run(board.ids[0]);
  aborter.join();
}

TEST(KillAnywhere, LeavesPeersThatCanAbortAndNothingElse) {
  constexpr int kRanks = 3;
  const unsigned tries = number_from("LOCKSTEP_TEST_SEEDS", 50);
  const unsigned first = number_from("LOCKSTEP_TEST_SEED", 1);
  for (unsigned seed = first; seed < first + tries && !HasFailure(); ++seed) {
    std::mt19937 random(seed);
    const auto victim = static_cast<size_t>(random() % kRanks);
    Board& board = *new_board();
    for (ncclUniqueId& id : board.ids[0]) NCCL_OK(ncclGetUniqueId(&id));
    std::vector<Child> ranks;
    for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back([&, rank] { survive(board, rank, kRanks, seed); });
    std::mt19937 common(seed);
    const bool at_once = plan_of(common, kRanks, true).nonblocking;
    const auto deadline = Clock::now() + milliseconds(60'000);
    while (!at_once && board.members.load() < kRanks && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ranks[victim].kill_now();
    board.killed.store(1);
    std::vector<Child> others;
    for (size_t r = 0; r < ranks.size(); ++r)
      if (r != victim) others.push_back(std::move(ranks[r]));
    expect_all_end_well(others, milliseconds(60'000));
    if (HasFailure()) {
      tell_whereabouts(board, kRanks);
      ADD_FAILURE() << "seed " << seed << ", rank " << victim << " was killed";
    }
    munmap(&board, sizeof board);
  }
  EXPECT_TRUE(names_in("/dev/shm").empty());
  EXPECT_TRUE(names_in("/tmp").empty());
}

}  // namespace
}  // namespace lockstep::test
