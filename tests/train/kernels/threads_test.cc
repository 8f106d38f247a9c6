// SPDX-License-Identifier: MIT

#include "reference/train/kernels/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "reference/train/kernels/kernels.h"

namespace train::test {
namespace {

std::ptrdiff_t tasks() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

TEST(Threads, OneThreadStartsNone) {
  set_threads(1);
  const auto before = tasks();
  int64_t sum = 0;
  for_blocks(100, [&](int64_t block) { sum += block; });
  EXPECT_EQ(sum, 4950);
  EXPECT_EQ(tasks(), before);
}

TEST(Threads, EveryBlockRunsOnceWhoeverCalls) {
  set_threads(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 6; ++caller)
    callers.emplace_back([&wrong, caller] {
      for (int round = 0; round < 200; ++round) {
        std::vector<std::atomic<int>> ran(static_cast<size_t>((caller * 7 + round) % 23));
        for_blocks(static_cast<int64_t>(ran.size()),
                   [&](int64_t block) { ran[static_cast<size_t>(block)].fetch_add(1); });
        for (const auto& times : ran) wrong += times == 1 ? 0 : 1;
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
  set_threads(1);
}

TEST(Threads, PiecesCoverTheRange) {
  for (const int64_t count : {0, 1, 7, 8, 9, 64}) {
    std::vector<int> hits(static_cast<size_t>(count));
    for_pieces(count, 8, [&](int64_t begin, int64_t end) {
      EXPECT_LE(end - begin, 8);
      for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
    });
    EXPECT_EQ(hits, std::vector<int>(static_cast<size_t>(count), 1));
  }
}

TEST(Threads, ScratchIsTheThreadsOwn) {
  void* mine = scratch();
  EXPECT_EQ(mine, scratch());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mine) % 64, 0U);
  void* theirs = nullptr;
  std::thread([&] { theirs = scratch(); }).join();
  EXPECT_NE(theirs, nullptr);
}

}  // namespace
}  // namespace train::test
