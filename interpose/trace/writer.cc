// SPDX-License-Identifier: MIT
//
// Finding room in a trace file: blocks of the ring, records of the arena, and growing both while calls write. Making
// files is in writer_file.cc.

#include "interpose/trace/writer.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interpose/trace/writer_parts.h"

namespace lockstep::trace {
namespace {

int64_t now_ms() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

uint64_t ring_offset(const Trace& trace) { return trace.header->areas[kRingArea].offset; }

// One more segment. Called with `growing` held. False when the disk is full: the ring is then as long as it will ever
// be.
bool add_segment(Trace& trace, bool touched) {
  Status& status = *trace.status;
  const uint64_t have = status.ring_allocated.load(std::memory_order_relaxed);
  if (have >= status.ring_slots.load(std::memory_order_relaxed)) return true;
  const int saved = errno;
  const int64_t before = now_ms();
  const int error = allocate(trace, ring_offset(trace) + have * sizeof(Record), kSegmentBytes);
  trace.slow.store(now_ms() - before >= kSlowMs, std::memory_order_relaxed);
  if (error != 0) {
    status.ring_slots.store(have, std::memory_order_relaxed);
    errno = saved;
    return false;
  }
  errno = saved;
  if (touched) touch(trace.ring + have, kSegmentBytes);
  status.ring_allocated.store(have + kSegmentSlots, std::memory_order_release);
  return true;
}

bool try_lock(std::atomic<uint32_t>& word) { return word.exchange(1, std::memory_order_acquire) == 0; }
void unlock(std::atomic<uint32_t>& word) { word.store(0, std::memory_order_release); }

// A disk that keeps callers waiting is left to the helper thread, where there is one.
bool is_slow(const Trace& trace) {
  return trace.slow.load(std::memory_order_relaxed) && trace.helped.load(std::memory_order_relaxed);
}

// One more step; false when there is no more disk. Two may do this at once, even from two processes: allocating what is
// allocated is no harm.
bool grow_arena(Trace& trace, uint64_t have) {
  const uint64_t more = trace.arena_bytes - have < kArenaStepBytes ? trace.arena_bytes - have : kArenaStepBytes;
  const int saved = errno;
  const int error = allocate(trace, trace.header->areas[kArenaArea].offset + have, more);
  errno = saved;
  if (error == 0) trace.status->arena_allocated.compare_exchange_strong(have, have + more, std::memory_order_acq_rel);
  return error == 0;
}

}  // namespace

void grow_ahead(Trace& trace, unsigned segments) {
  Status& status = *trace.status;
  const uint64_t arena = status.arena_allocated.load(std::memory_order_acquire);
  if (arena < trace.arena_bytes && status.arena_next.load(std::memory_order_relaxed) + kArenaStepBytes / 2 > arena)
    grow_arena(trace, arena);
  if (!try_lock(trace.growing)) return;
  for (;;) {
    const uint64_t have = status.ring_allocated.load(std::memory_order_relaxed);
    const uint64_t next = status.ring_next.load(std::memory_order_relaxed);
    if (have >= status.ring_slots.load(std::memory_order_relaxed) || have >= next + segments * kSegmentSlots) break;
    if (!add_segment(trace, true)) break;
  }
  unlock(trace.growing);
}

namespace {

void ring_for_helper(Trace& trace) {
  const int saved = errno;
  trace.bell.fetch_add(1, std::memory_order_relaxed);
  syscall(SYS_futex, &trace.bell, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  errno = saved;
}

// The slot is not there yet. Extends the ring, or waits for whoever is at it; false when that takes too long.
bool wait_for_disk(Trace& trace, uint64_t slot) {
  Status& status = *trace.status;
  const auto is_there = [&] { return slot < status.ring_allocated.load(std::memory_order_acquire); };
  const bool helped = trace.helped.load(std::memory_order_relaxed);
  const bool slow = is_slow(trace);
  if (slow) ring_for_helper(trace);
  if (!slow && try_lock(trace.growing)) {
    if (!is_there()) add_segment(trace, false);
    unlock(trace.growing);
    return true;
  }
  if (slow) return is_there();
  for (const int64_t start = now_ms(); trace.growing.load(std::memory_order_relaxed);) {
    if (is_there()) return true;
    if (helped && now_ms() - start >= kSlowMs) {
      trace.slow.store(1, std::memory_order_relaxed);  // so that the next writers do not wait as well
      return false;
    }
    sched_yield();
  }
  return true;
}

}  // namespace

uint64_t make_room(Trace& trace, uint64_t sequence) {
  Status& status = *trace.status;
  for (;;) {
    const uint64_t slots = status.ring_slots.load(std::memory_order_relaxed);
    const uint64_t slot = slot_of(sequence, slots);
    const uint64_t have = status.ring_allocated.load(std::memory_order_acquire);
    if (slot < have) {
      // The first slot of a segment, and more to come: time for the helper to make the one after next.
      if (slot % kSegmentSlots == 0 && have < slots) ring_for_helper(trace);
      return slot;
    }
    if (!wait_for_disk(trace, slot)) return kNoBlock;
  }
}

void give_block_back(Trace& trace, Cursor& cursor) {
  if (cursor.end == 0) return;
  Status& status = *trace.status;
  const uint64_t unused = cursor.end - cursor.next;
  if (cursor.block == kNoBlock) {
    status.events_dropped.fetch_sub(unused, std::memory_order_relaxed);
  } else {
    if (unused) status.ring_skipped.fetch_add(unused, std::memory_order_relaxed);
    trace.owners[cursor.block].store(0, std::memory_order_release);
  }
  cursor = {};
}

namespace {

// The next numbers; false when the file is full and must not wrap.
bool take_numbers(Trace& trace, uint64_t& first) {
  Status& status = *trace.status;
  if (!trace.full) {
    first = status.ring_next.fetch_add(kBlockSlots, std::memory_order_relaxed);
    return true;
  }
  first = status.ring_next.load(std::memory_order_relaxed);
  do
    if (first + kBlockSlots > status.ring_slots.load(std::memory_order_relaxed)) return false;
  while (!status.ring_next.compare_exchange_weak(first, first + kBlockSlots, std::memory_order_relaxed));
  return true;
}

// All threads that find no room write to the same block, which nobody reads. The numbers are lost with it.
void write_nowhere(Trace& trace, Cursor& cursor, uint64_t first) {
  trace.status->events_dropped.fetch_add(kBlockSlots, std::memory_order_relaxed);
  cursor = {first, first + kBlockSlots, trace.nowhere, kNoBlock};
}

void find_block(Trace& trace, Cursor& cursor) {
  Status& status = *trace.status;
  for (;;) {
    uint64_t first;
    if (!take_numbers(trace, first)) return write_nowhere(trace, cursor, first);
    const uint64_t slot = make_room(trace, first), block = slot / kBlockSlots;
    if (slot == kNoBlock || (trace.full && slot != first))
      return write_nowhere(trace, cursor, first);  // the disk is slow, or full
    if (trace.owners[block].exchange(1, std::memory_order_acquire) == 0) {
      // Newer records may be there: of somebody who came by while we slept on the way here.
      const uint64_t found = trace.ring[slot].commit.load(std::memory_order_relaxed) & ~kBusy;
      if (found <= first) {
        cursor = {first, first + kBlockSlots, &trace.ring[slot], block};
        return;
      }
      trace.owners[block].store(0, std::memory_order_release);
    }
    status.ring_skipped.fetch_add(kBlockSlots, std::memory_order_relaxed);
  }
}

}  // namespace

void take_block(Trace& trace, Cursor& cursor) {
  const int kept = errno;  // what records a call leaves errno as it is
  give_block_back(trace, cursor);
  find_block(trace, cursor);
  errno = kept;
}

ArenaHeader* arena_reserve(Trace& trace, ArenaKind kind, size_t size) {
  Status& status = *trace.status;
  const uint64_t bytes = (sizeof(ArenaHeader) + size + 7) / 8 * 8;
  uint64_t at = status.arena_next.load(std::memory_order_relaxed);
  for (;;) {
    uint64_t have = status.arena_allocated.load(std::memory_order_acquire);
    if (bytes > trace.arena_bytes || at > trace.arena_bytes - bytes) {
      status.arena_dropped.fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    }
    if (at + bytes > have) {
      if (is_slow(trace) || !grow_arena(trace, have)) {
        status.arena_dropped.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
      }
      continue;
    }
    if (status.arena_next.compare_exchange_weak(at, at + bytes, std::memory_order_relaxed)) break;
  }
  auto* header = reinterpret_cast<ArenaHeader*>(trace.arena + at);
  header->size = static_cast<uint32_t>(bytes);
  header->kind = static_cast<uint16_t>(kind);
  keep_store_order();
  return header;
}

void write_mark(Record* record, uint64_t sequence, uint64_t stamp, uint16_t kind, uint32_t tid, uint64_t value,
                uint16_t thread_slot, const char* text, size_t length) {
  uint64_t word[kRecordWords] = {stamp, word_of(static_cast<uint16_t>(RecordKind::mark), kind, tid), value,
                                 word_of(thread_slot, static_cast<uint16_t>(length < 0xFFFF ? length : 0xFFFF), 0)};
  constexpr size_t kText = sizeof(Record::mark.text);
  constexpr size_t kTextWord = (offsetof(Record, mark.text) - offsetof(Record, stamp)) / 8;
  static_assert(kTextWord * 8 + kText == kRecordWords * 8);
  if (text) put_text(reinterpret_cast<char*>(&word[kTextWord]), kText, text, length);
  commit(record, word, sequence);
}

}  // namespace lockstep::trace
