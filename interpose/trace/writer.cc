// SPDX-License-Identifier: MIT
//
// Making, mapping and growing trace files.

#include "interpose/trace/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace lockstep::trace {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kSegmentSlots = kSegmentBytes / sizeof(Record);

// The raw call, since the C library's has moved between versions of it.
bool identify(int fd, uint64_t& device, uint64_t& inode) {
  struct stat info;
  if (syscall(SYS_fstat, fd, &info) != 0) return false;
  device = info.st_dev;
  inode = info.st_ino;
  return true;
}

// Backs a part of the file by disk. A process over its file size limit would be killed by SIGXFSZ, so ask first. And a
// job may have closed all descriptors it does not know (daemons do), and opened a file of its own under our number.
int allocate(const Trace& trace, uint64_t offset, uint64_t bytes) {
  const int fd = trace.fd;
  uint64_t device, inode;
  if (!identify(fd, device, inode) || device != trace.device || inode != trace.inode) return EBADF;
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && offset + bytes > limit.rlim_cur)
    return EFBIG;
  int error;
  do error = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  while (error == EINTR);
  return error;
}

// Takes the page faults of fresh, unpublished pages now, so that no call has to.
void touch(void* at, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  for (uint64_t i = 0; i < bytes; i += kPage) static_cast<volatile uint8_t*>(at)[i] = 0;
}

int64_t now_ms() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

uint64_t ring_offset(const Trace& trace) { return trace.header->areas[kRingArea].offset; }

// One more segment. Called with `growing` held. False when the disk is full: the ring is then as long as it will ever be.
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

void point_into(Trace& trace, uint8_t* base) {
  trace.header = reinterpret_cast<FileHeader*>(base);
  const Area* areas = trace.header->areas;
  trace.status = reinterpret_cast<Status*>(base + areas[kStatusArea].offset);
  trace.threads = reinterpret_cast<ThreadSlot*>(base + areas[kThreadArea].offset);
  trace.comms = reinterpret_cast<CommSlot*>(base + areas[kCommArea].offset);
  trace.arena = base + areas[kArenaArea].offset;
  trace.ring = reinterpret_cast<Record*>(base + areas[kRingArea].offset);
  trace.arena_bytes = areas[kArenaArea].size;
}

void fill(Trace& trace, const FileHeader& header, const Layout& layout, ClockPair first_clock) {
  FileHeader& h = *trace.header;
  __builtin_memcpy(&h, &header, sizeof header);
  __builtin_memcpy(h.magic, kMagic, sizeof kMagic);
  h.version_major = kVersionMajor;
  h.version_minor = kVersionMinor;
  h.header_size = sizeof(FileHeader);
  h.byte_order = kByteOrderMark;
  __builtin_memcpy(h.areas, layout.areas, sizeof layout.areas);
  point_into(trace, reinterpret_cast<uint8_t*>(trace.header));
  Status& status = *trace.status;
  status.first_clock = first_clock;
  status.ring_slots.store(layout.areas[kRingArea].size / sizeof(Record), std::memory_order_relaxed);
  status.ring_allocated.store(kSegmentSlots, std::memory_order_relaxed);
  status.ring_block.store(kBlockSlots, std::memory_order_relaxed);
  status.arena_next.store(8, std::memory_order_relaxed);  // so that reference 0 means none
  status.arena_allocated.store(kArenaStepBytes, std::memory_order_relaxed);
  status.recording.store(1, std::memory_order_relaxed);
}

// Opens a name nobody has. A process that called exec finds the file of its former self and must leave it alone.
int open_new(Trace& trace, char (&unfinished)[sizeof Trace::path + 8], const char* folder, const FileHeader& header) {
  for (int attempt = 1; attempt < 100; attempt++) {
    char again[8] = "";
    if (attempt > 1) snprintf(again, sizeof again, "-%d", attempt);
    const int n = snprintf(trace.path, sizeof trace.path, "%s/%s.%d.%llu%s%s", folder, header.host, header.pid,
                           static_cast<unsigned long long>(header.pid_start_ticks), again, kFileSuffix);
    if (n < 0 || static_cast<size_t>(n) >= sizeof trace.path) {
      errno = ENAMETOOLONG;
      return -1;
    }
    snprintf(unfinished, sizeof unfinished, "%s.tmp", trace.path);
    if (access(trace.path, F_OK) == 0) continue;
    const int fd = open(unfinished, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

// Keeps descriptors 0 to 2 and the small ones a shell or a daemon hands around free of ours.
int move_high(int fd) {
  const int high = fcntl(fd, F_DUPFD_CLOEXEC, 100);
  if (high < 0) return fd;
  close(fd);
  return high;
}

Failure give_up(Trace& trace, const char* unfinished, const char* what, int error) {
  if (trace.header) munmap(trace.header, trace.mapped_bytes);
  if (trace.owners) munmap(trace.owners, trace.owner_count);
  trace.owners = nullptr;
  if (trace.fd >= 0) close(trace.fd);
  if (unfinished) unlink(unfinished);
  trace.header = nullptr;
  trace.status = nullptr;
  trace.fd = -1;
  return {what, error};
}

}  // namespace

Layout make_layout(uint64_t ring_bytes) {
  Layout layout = {};
  uint64_t at = sizeof(FileHeader);
  const auto place = [&](AreaIndex index, uint64_t bytes, uint32_t record_size) {
    layout.areas[index] = {at, bytes, record_size, 0};
    at += (bytes + kPage - 1) / kPage * kPage;
  };
  place(kStatusArea, sizeof(Status), sizeof(Status));
  place(kThreadArea, kThreadSlots * sizeof(ThreadSlot), sizeof(ThreadSlot));
  place(kCommArea, kCommSlots * sizeof(CommSlot), sizeof(CommSlot));
  place(kArenaArea, kArenaBytes, 0);
  place(kRingArea, ring_bytes, sizeof(Record));
  layout.total_bytes = at;
  return layout;
}

Failure create(Trace& trace, const char* folder, const FileHeader& header, ClockPair first_clock, ClockPair (*clocks)(),
               uint64_t ring_bytes) {
  char unfinished[sizeof Trace::path + 8];
  trace.header = nullptr;
  trace.owners = nullptr;
  trace.fd = open_new(trace, unfinished, folder, header);
  if (trace.fd < 0) return {"create a trace file", errno};
  trace.fd = move_high(trace.fd);
  identify(trace.fd, trace.device, trace.inode);

  const Layout layout = make_layout(ring_bytes);
  const uint64_t arena = layout.areas[kArenaArea].offset, ring = layout.areas[kRingArea].offset;
  int error = allocate(trace, 0, arena + kArenaStepBytes);
  if (error == 0) error = allocate(trace, ring, kSegmentBytes);
  if (error != 0) return give_up(trace, unfinished, "allocate the first megabytes of a trace file", error);

  void* base = mmap(nullptr, layout.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, trace.fd, 0);
  if (base == MAP_FAILED) return give_up(trace, unfinished, "map a trace file", errno);
  trace.mapped_bytes = layout.total_bytes;
  trace.header = static_cast<FileHeader*>(base);
  const uint64_t blocks = ring_bytes / sizeof(Record) / kBlockSlots;
  trace.owner_count = (blocks + kPage - 1) / kPage * kPage + kPage;  // and the block that leads nowhere
  static_assert(kBlockSlots * sizeof(Record) <= kPage);
  void* owners = mmap(nullptr, trace.owner_count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (owners == MAP_FAILED) return give_up(trace, unfinished, "get memory for a trace", errno);
  trace.owners = static_cast<std::atomic<uint8_t>*>(owners);
  trace.nowhere = reinterpret_cast<Record*>(static_cast<uint8_t*>(owners) + trace.owner_count - kPage);
  trace.full = header.mode == TraceMode::full;
  // Not into core dumps: they would say nothing new.
  madvise(base, layout.total_bytes, MADV_DONTDUMP);
  fill(trace, header, layout, first_clock);
  touch(trace.ring, kSegmentBytes);

  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  fcntl(trace.fd, F_SETLK, &whole);  // a file system without locks leaves /proc as the only witness of our life
  trace.status->second_clock = clocks();
  if (rename(unfinished, trace.path) != 0) return give_up(trace, unfinished, "give a trace file its name", errno);
  return {nullptr, 0};
}

Failure attach(Trace& trace, const char* path) {
  trace.header = nullptr;
  trace.owners = nullptr;
  snprintf(trace.path, sizeof trace.path, "%s", path);
  trace.fd = open(path, O_RDWR | O_CLOEXEC);
  if (trace.fd < 0) return {"open a trace file for writing", errno};
  identify(trace.fd, trace.device, trace.inode);
  FileHeader header;
  if (pread(trace.fd, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
      memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.version_major != kVersionMajor ||
      header.byte_order != kByteOrderMark)
    return give_up(trace, nullptr, "recognise a trace file", EPROTO);
  // Only what this program knows: its own layout, up to the ring.
  const Layout layout = make_layout(kSegmentBytes);
  for (uint32_t i = 0; i < kRingArea; i++)
    if (memcmp(&header.areas[i], &layout.areas[i], sizeof(Area)) != 0)
      return give_up(trace, nullptr, "recognise the layout of a trace file", EPROTO);
  const off_t size = lseek(trace.fd, 0, SEEK_END);
  trace.mapped_bytes = layout.areas[kRingArea].offset;
  if (size < static_cast<off_t>(trace.mapped_bytes)) return give_up(trace, nullptr, "find the arena of a trace file", EPROTO);
  void* base = mmap(nullptr, trace.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, trace.fd, 0);
  if (base == MAP_FAILED) return give_up(trace, nullptr, "map a trace file", errno);
  point_into(trace, static_cast<uint8_t*>(base));
  trace.ring = nullptr;
  return {nullptr, 0};
}

void unmap(Trace& trace) {
  if (trace.header) give_up(trace, nullptr, nullptr, 0);
}

namespace {

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

}  // namespace

namespace {

void find_block(Trace& trace, Cursor& cursor) {
  Status& status = *trace.status;
  for (;;) {
    uint64_t first;
    if (!take_numbers(trace, first)) return write_nowhere(trace, cursor, first);
    const uint64_t slot = make_room(trace, first), block = slot / kBlockSlots;
    if (slot == kNoBlock || (trace.full && slot != first)) return write_nowhere(trace, cursor, first);  // the disk is slow, or full
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
