// SPDX-License-Identifier: MIT
//
// The allocator against a plain model of which bytes are taken.

#include "reference/cuda/allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace lockstep::host {
namespace {

TEST(RangeAllocator, NeverGivesAByteTwiceAndFindsAllSpaceAgain) {
  constexpr uint64_t kBegin = 4096;
  constexpr uint64_t kEnd = kBegin + (1u << 20);
  for (unsigned seed = 0; seed < 20; ++seed) {
    RangeAllocator ranges(kBegin, kEnd);
    std::mt19937 random(seed);
    std::map<uint64_t, uint64_t> taken;  // begin -> end
    for (int step = 0; step < 2000; ++step) {
      if (random() % 3 != 0 || taken.empty()) {
        const uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 100000 : 2000);
        const uint64_t alignment = uint64_t{1} << (random() % 9);
        const auto at = ranges.take(bytes, alignment);
        if (!at) continue;
        ASSERT_EQ(0u, *at % alignment);
        ASSERT_GE(*at, kBegin);
        ASSERT_LE(*at + bytes, kEnd);
        const auto after = taken.lower_bound(*at);
        ASSERT_TRUE(after == taken.end() || *at + bytes <= after->first);
        ASSERT_TRUE(after == taken.begin() || std::prev(after)->second <= *at);
        taken.emplace(*at, *at + bytes);
      } else {
        auto victim = taken.begin();
        std::advance(victim, random() % taken.size());
        ranges.give(victim->first, victim->second - victim->first);
        taken.erase(victim);
      }
    }
    for (const auto& [begin, end] : taken) ranges.give(begin, end - begin);
    EXPECT_EQ(kBegin, ranges.take(kEnd - kBegin, 4096).value_or(0)) << "not merged into one block again";
    EXPECT_FALSE(ranges.take(1, 1).has_value());
  }
}

TEST(RangeAllocator, HandsBackOnlyWhatIsFreeAndWasUsed) {
  RangeAllocator ranges(0, 64u << 20);
  EXPECT_EQ(0u, ranges.take(2u << 20, 256).value());
  EXPECT_EQ(2u << 20, ranges.take(1000 * 4096, 256).value());
  const auto stale = ranges.give(0, 2u << 20);
  ASSERT_TRUE(stale.has_value());
  EXPECT_EQ(0u, stale->first);
  EXPECT_EQ(2u << 20, stale->second);
  EXPECT_EQ(0u, ranges.take(4096, 256).value());
  EXPECT_FALSE(ranges.give(0, 4096).has_value());  // a page is not worth a system call
}

}  // namespace
}  // namespace lockstep::host
