// SPDX-License-Identifier: MIT
//
// How the bench of the host runtime drives two jobs at once, ours and the MPI program it is compared with: both wait
// asleep at a board in shared memory until the bench gives them a round of work, so that short rounds of one and of the
// other can alternate and a slow moment of the machine hits both. Filling the inputs, meeting before each operation,
// taking the time and checking the result are the same code for both; they differ in the one call that is measured.

#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "reference/cuda/wait.h"

namespace lockstep::bench {

inline constexpr int kMaxRanks = 4;
inline constexpr int kMaxSamples = 64;
inline constexpr size_t kMaxFloats = 4u << 20;

struct Board {
  host::Bell bell;                // rung by the bench: there is a round to do, or the end
  std::atomic<uint32_t> rounds;   // given out so far
  std::atomic<uint32_t> over;     // 1: no more
  std::atomic<uint32_t> ready;    // ranks that are at the board
  std::atomic<uint32_t> done;     // ranks that have done a round, all rounds together
  std::atomic<uint64_t> arrived;  // the barrier
  std::atomic<uint64_t> wrong;    // results
  int32_t bench_pid;
  int32_t ranks;
  // The round:
  uint64_t floats;     // of one operation
  int32_t samples;     // times taken
  int32_t per_sample;  // operations in a row for one time
  // What came of it:
  int64_t begin[kMaxRanks][kMaxSamples];
  int64_t end[kMaxRanks][kMaxSamples];
};

inline Board* map_board(int fd) {
  void* at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Board*>(at);
}

inline int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Small whole numbers: any order of summing gives the same float.
inline float input(int rank, uint64_t turn, size_t i) {
  return static_cast<float>((i * 5 + turn * 11 + static_cast<uint64_t>(rank) * 3) & 1023u);
}

inline bool bench_is_gone(const Board& board) { return kill(board.bench_pid, 0) != 0 && errno == ESRCH; }

// Everybody waits here for everybody; false when the bench has died.
inline bool meet(Board& board) {
  const auto ranks = static_cast<uint64_t>(board.ranks);
  const uint64_t target = (board.arrived.fetch_add(1) / ranks + 1) * ranks;
  for (uint64_t turns = 1; board.arrived.load() < target; ++turns) {
    if (turns % 256 != 0) {
      host::cpu_relax();
    } else {
      sched_yield();
      if (turns % (1u << 20) == 0 && bench_is_gone(board)) return false;
    }
  }
  return true;
}

// One rank's work until the bench has had enough. all_reduce(send, recv, floats) sums over all ranks and returns when
// the result is there.
template <class AllReduce>
void serve(Board& board, int rank, float* send, float* recv, AllReduce all_reduce) {
  uint64_t turn = 0;
  const auto fill = [&](size_t floats) {
    ++turn;
    for (size_t i = 0; i < floats; ++i) send[i] = input(rank, turn, i);
  };
  const auto right = [&](size_t floats) {
    uint64_t wrong = 0;
    for (size_t i = 0; i < floats; ++i) {
      float sum = 0;
      for (int r = 0; r < board.ranks; ++r) sum += input(r, turn, i);
      wrong += recv[i] != sum;
    }
    return wrong == 0;
  };
  board.ready.fetch_add(1);
  for (uint32_t round = 1;; ++round) {
    while (board.rounds.load() < round && board.over.load() == 0) {
      board.bell.sleep(500'000'000, [&] { return board.rounds.load() < round && board.over.load() == 0; });
      if (bench_is_gone(board)) return;
    }
    if (board.over.load() != 0) return;
    const size_t floats = board.floats;
    for (int s = 0; s < board.samples; ++s) {
      fill(floats);
      if (!meet(board)) return;
      board.begin[rank][s] = now_ns();
      all_reduce(send, recv, floats);
      for (int again = 1; again < board.per_sample; ++again) {
        if (!right(floats)) board.wrong.fetch_add(1);
        fill(floats);
        all_reduce(send, recv, floats);
      }
      board.end[rank][s] = now_ns();
      if (!right(floats)) board.wrong.fetch_add(1);
      if (!meet(board)) return;
    }
    board.done.fetch_add(1);
  }
}

}  // namespace lockstep::bench
