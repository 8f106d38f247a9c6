// SPDX-License-Identifier: MIT
//
// The ring of a trace: it grows, wraps, is shared by threads, and meets a disk that is full.

#include <sys/resource.h>

#include <thread>

#include "tests/interpose/trace_fixture.h"

namespace lockstep::trace {
namespace {

class TraceRing : public TraceFixture {};

// While it lives the disk has room for so many segments of the ring. A file size limit stands for a full disk: both make
// posix_fallocate fail, and the limit must not raise SIGXFSZ either.
class DiskForSegments {
 public:
  DiskForSegments(const Trace& trace, uint64_t segments) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &old_), 0);
    struct rlimit limit = old_;
    limit.rlim_cur = trace.header->areas[kRingArea].offset + segments * kSegmentBytes + 100;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~DiskForSegments() { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &old_), 0); }

 private:
  struct rlimit old_ = {};
};

TEST_F(TraceRing, AWrappedRingKeepsTheNewest) {
  open(kSegmentBytes);
  constexpr uint64_t kSlots = kSegmentBytes / sizeof(Record);
  for (uint64_t i = 0; i < kSlots; i++) end(begin(i));  // two records each: one lap is lost
  const TraceFile file = read();
  EXPECT_EQ(file.events, 2 * kSlots);
  EXPECT_EQ(file.overwritten, kSlots);
  EXPECT_EQ(file.torn, 0u);
  ASSERT_EQ(file.calls.size(), kSlots / 2);
  EXPECT_EQ(file.calls.front().count, kSlots / 2);
  EXPECT_EQ(file.calls.back().count, kSlots - 1);
  for (const Call& call : file.calls) EXPECT_TRUE(call.returned);
}

TEST_F(TraceRing, TheRingGrowsUnderItsWriter) {
  open(4 * kSegmentBytes);
  constexpr uint64_t kSlots = 4 * kSegmentBytes / sizeof(Record);
  EXPECT_EQ(trace_.status->ring_allocated.load(), kSlots / 4);
  for (uint64_t i = 0; i < kSlots; i++) begin(i);
  EXPECT_EQ(trace_.status->ring_allocated.load(), kSlots);
  const TraceFile file = read();
  EXPECT_EQ(file.calls.size(), kSlots);
  EXPECT_EQ(file.overwritten, 0u);
}

TEST_F(TraceRing, GrowAheadAllocatesBeforeItIsNeeded) {
  open(8 * kSegmentBytes);
  grow_ahead(trace_, 3);
  EXPECT_EQ(trace_.status->ring_allocated.load(), 3 * kSegmentBytes / sizeof(Record));
}

TEST_F(TraceRing, ThreadsWriteSideBySide) {
  open(16 * kSegmentBytes);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 8000; i++) end(begin(i * 4 + static_cast<uint64_t>(t)));
    });
  for (std::thread& thread : threads) thread.join();
  const TraceFile file = read();
  ASSERT_EQ(file.calls.size(), 32000u);
  std::vector<bool> seen(32000);
  for (const Call& call : file.calls) {
    EXPECT_TRUE(call.returned);
    EXPECT_FALSE(seen[call.count]);
    seen[call.count] = true;
  }
  EXPECT_EQ(file.torn, 0u);
}

TEST_F(TraceRing, AFullDiskShortensTheRingForGood) {
  open(16 * kSegmentBytes);
  constexpr uint64_t kSlots = 2 * kSegmentBytes / sizeof(Record);
  {
    const DiskForSegments small(trace_, 2);
    for (uint64_t i = 0; i < kSlots + 5; i++) begin(i);
  }
  EXPECT_EQ(trace_.status->ring_slots.load(), kSlots);
  const TraceFile file = read();
  EXPECT_EQ(file.overwritten, kBlockSlots);  // numbers are handed out in blocks
  EXPECT_EQ(file.calls.size(), kSlots - kBlockSlots + 5);
  EXPECT_EQ(file.torn, 0u);
  EXPECT_EQ(file.calls.back().count, kSlots + 4);
}

TEST_F(TraceRing, ARingThatShrankIsReadBySequence) {
  open(4 * kSegmentBytes);
  constexpr uint64_t kSegmentSlots = kSegmentBytes / sizeof(Record);
  for (uint64_t i = 0; i < kSegmentSlots / 2; i++) begin(i);
  trace_.status->ring_slots.store(1008);  // a number that moves every sequence to another slot
  for (uint64_t i = 0; i < 10; i++) begin(kSegmentSlots / 2 + i);
  const TraceFile file = read();
  EXPECT_EQ(file.calls.back().count, kSegmentSlots / 2 + 9);
  EXPECT_EQ(file.events - file.overwritten, file.calls.size());
  EXPECT_EQ(file.torn, 0u);
  EXPECT_LE(file.calls.size(), 1008u);
  EXPECT_GT(file.calls.size(), 1008u - 2 * kBlockSlots);
  for (size_t i = 1; i < file.calls.size(); i++) EXPECT_LT(file.calls[i - 1].event, file.calls[i].event);
}

// A writer that sleeps between reserve and commit while the others fill a whole lap spoils nobody's record.
TEST_F(TraceRing, AWriterThatSleptThroughALapSpoilsNothing) {
  open();
  constexpr uint64_t kSlots = kSegmentBytes / sizeof(Record);
  Cursor sleeper = {};
  uint64_t sleeping;
  Record* held = reserve(trace_, sleeper, sleeping);
  for (uint64_t i = 0; i < kSlots + 100; i++) begin(i);  // one of them finds the block taken and goes on to the next
  EXPECT_EQ(trace_.status->ring_skipped.load(), kBlockSlots);
  write_end(held, sleeping, 1, 60, 77, 5, 0, 1);
  const TraceFile file = read();
  EXPECT_EQ(file.torn, 0u);
  for (size_t i = 1; i < file.calls.size(); i++) EXPECT_EQ(file.calls[i].count, file.calls[i - 1].count + 1);
  EXPECT_EQ(file.calls.back().count, kSlots + 99);
  EXPECT_GE(file.calls.size(), kSlots - 2 * kBlockSlots);
}

// It then finds that all others have lapped its block, whose numbers are too old to be read, and takes another.
TEST_F(TraceRing, AWriterThatWasLappedTakesANewBlock) {
  open();
  constexpr uint64_t kSlots = kSegmentBytes / sizeof(Record);
  Cursor sleeper = {};
  uint64_t first, second;
  Record* record = reserve(trace_, sleeper, first);
  write_end(record, first, 1, 60, 77, 5, 0, 1);
  for (uint64_t i = 0; i < kSlots + 100; i++) begin(i);
  record = reserve(trace_, sleeper, second);
  write_end(record, second, 1, 60, 77, 5, 0, 1);
  EXPECT_GT(second, first + kSlots);
  EXPECT_EQ(trace_.status->ring_skipped.load(), kBlockSlots + kBlockSlots - 1);
  EXPECT_EQ(read().torn, 0u);
}

TEST_F(TraceRing, TwoWritersNeverShareABlock) {
  open();
  Cursor one = {}, other = {};
  uint64_t a, b;
  for (uint64_t i = 0; i < 100; i++) {
    const Record* mine = reserve(trace_, one, a);
    const Record* theirs = reserve(trace_, other, b);
    EXPECT_NE((mine - trace_.ring) / kBlockSlots, (theirs - trace_.ring) / kBlockSlots);
  }
}

TEST_F(TraceRing, ATornRecordIsCountedAndSkipped) {
  open();
  begin(1);
  begin(2);
  uint64_t sequence;
  reserve(trace_, cursor(), sequence);            // killed here
  begin(4);
  trace_.ring[1].begin.count = 99;      // killed while storing, with an old commit word
  const TraceFile file = read();
  EXPECT_EQ(file.torn, 2u);
  ASSERT_EQ(file.calls.size(), 2u);
  EXPECT_EQ(file.calls[0].count, 1u);
  EXPECT_EQ(file.calls[1].count, 4u);
}

TEST_F(TraceRing, InFullModeTheFirstEventsStayAndTheRestIsCounted) {
  FileHeader header = test_header();
  header.mode = TraceMode::full;
  ASSERT_EQ(create(trace_, folder_.path().c_str(), header, clocks_now(), clocks_now, kSegmentBytes).what, nullptr);
  constexpr uint64_t kSlots = kSegmentBytes / sizeof(Record);
  for (uint64_t i = 0; i < kSlots + 1000; i++) begin(i);
  const TraceFile file = read();
  EXPECT_EQ(file.calls.size(), kSlots);
  EXPECT_EQ(file.calls.front().count, 0u);
  EXPECT_EQ(file.calls.back().count, kSlots - 1);
  EXPECT_EQ(file.overwritten + file.torn, 0u);
  EXPECT_GE(file.dropped, 1000u);  // in blocks, and the last one is not at its end
  EXPECT_LT(file.dropped, 1000u + kBlockSlots);
}

TEST_F(TraceRing, InFullModeAFullDiskDropsWhatComes) {
  FileHeader header = test_header();
  header.mode = TraceMode::full;
  ASSERT_EQ(create(trace_, folder_.path().c_str(), header, clocks_now(), clocks_now, 16 * kSegmentBytes).what, nullptr);
  constexpr uint64_t kSlots = 2 * kSegmentBytes / sizeof(Record);
  {
    const DiskForSegments small(trace_, 2);
    for (uint64_t i = 0; i < kSlots + 500; i++) begin(i);
  }
  const TraceFile file = read();
  EXPECT_EQ(file.calls.size(), kSlots);
  EXPECT_EQ(file.calls.front().count, 0u);
  EXPECT_GE(file.dropped, 500u);
}

}  // namespace
}  // namespace lockstep::trace
