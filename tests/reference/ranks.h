// SPDX-License-Identifier: MIT
//
// Runs a test's body as the ranks of a job: each a process of its own, or all as threads of one process. The test
// program itself never touches CUDA, because a child forked after that could not use it; so threads run in a child too.

#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#include "nccl.h"

namespace lockstep::test {

enum class As { processes, threads, pairs };  // pairs: processes of two threads each
inline const char* name_of(As as) {
  return as == As::processes ? "processes" : as == As::threads ? "threads" : "pairs";
}

#define CUDA_OK(call)               \
  do {                              \
    ASSERT_EQ(cudaSuccess, (call)); \
  } while (false)
#define NCCL_OK(call)                                            \
  do {                                                           \
    ASSERT_EQ(ncclSuccess, (call)) << ncclGetLastError(nullptr); \
  } while (false)

// Every access of memory costs tens of times as much there, so large amounts of data are smaller ones.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Limits tell a hang from work that is slow, so they allow for a machine with other things to do, and for sanitizers.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr int kPatience = 5;
#else
inline constexpr int kPatience = kThreadSanitizer ? 5 : 2;
#endif

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A child process that runs a function and ends with status 1 if a check in it failed.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  Child(Child&& other) noexcept : pid_(other.pid_), over_(other.over_), status_(other.status_) { other.over_ = true; }
  Child& operator=(Child&&) = delete;
  ~Child() { kill_now(); }

  pid_t pid() const { return pid_; }
  // Whether it has ended by then.
  bool ended_by(Clock::time_point deadline) {
    while (!over_ && !poll()) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return true;
  }
  bool still_runs_after(milliseconds span) { return !ended_by(Clock::now() + span); }
  int status() const { return status_; }
  void kill_now() {
    if (over_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    over_ = true;
  }

 private:
  bool poll() {
    over_ = waitpid(pid_, &status_, WNOHANG) == pid_;
    return over_;
  }
  pid_t pid_ = -1;
  bool over_ = false;
  int status_ = 0;
};

inline void expect_all_end_well(std::vector<Child>& children, milliseconds limit = milliseconds(30000)) {
  limit *= kPatience;
  const auto deadline = Clock::now() + limit;
  for (size_t i = 0; i < children.size(); ++i) {
    if (!children[i].ended_by(deadline)) {
      ADD_FAILURE() << "child " << i << " still runs after " << limit.count() << " ms";
      continue;
    }
    const int status = children[i].status();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "child " << i << (WIFSIGNALED(status) ? " died of signal " : " ended with status ")
        << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
}

// body(rank) for ranks 0 .. n-1.
inline void run_ranks(As as, int n, const std::function<void(int)>& body, milliseconds limit = milliseconds(30000)) {
  std::vector<Child> children;
  const int together = as == As::processes ? 1 : as == As::threads ? n : 2;
  for (int first = 0; first < n; first += together)
    children.emplace_back([&] {
      if (together == 1) return body(first);
      std::vector<std::thread> threads;
      for (int rank = first; rank < std::min(first + together, n); ++rank)
        threads.emplace_back([&body, rank] { body(rank); });
      for (auto& thread : threads) thread.join();
    });
  expect_all_end_well(children, limit);
}

// A rank's communicator over all ranks, its device, and a stream.
struct Rank {
  int rank = 0;
  int n = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  Rank(int my_rank, int ranks, const ncclUniqueId& id) : rank(my_rank), n(ranks) {
    int devices = 0;
    EXPECT_EQ(cudaSuccess, cudaGetDeviceCount(&devices));
    EXPECT_EQ(cudaSuccess, cudaSetDevice(rank % devices));
    EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    EXPECT_EQ(ncclSuccess, ncclCommInitRank(&comm, n, id, rank)) << ncclGetLastError(nullptr);
  }
  void close() {
    EXPECT_EQ(ncclSuccess, ncclCommDestroy(comm));
    EXPECT_EQ(cudaSuccess, cudaStreamDestroy(stream));
  }
  void sync() const { EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream)); }
};

inline void run_job(As as, int n, const std::function<void(Rank&)>& body, milliseconds limit = milliseconds(30000)) {
  ncclUniqueId id;
  ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
  run_ranks(
      as, n,
      [&](int rank) {
        Rank me(rank, n, id);
        body(me);
        if (!::testing::Test::HasFatalFailure()) me.close();
      },
      limit);
}

template <class T>
struct DeviceBuffer {
  T* data = nullptr;
  size_t count = 0;
  explicit DeviceBuffer(size_t n) : count(n) { EXPECT_EQ(cudaSuccess, cudaMalloc(&data, n * sizeof(T))); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { EXPECT_EQ(cudaSuccess, cudaFree(data)); }
  T& operator[](size_t i) { return data[i]; }
};

}  // namespace lockstep::test
