// SPDX-License-Identifier: MIT
//
// Making and mapping trace files.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/trace/writer_parts.h"

namespace lockstep::trace {
namespace {

// The raw call, since the C library's has moved between versions of it.
bool identify(int fd, uint64_t& device, uint64_t& inode) {
  struct stat info;
  if (syscall(SYS_fstat, fd, &info) != 0) return false;
  device = info.st_dev;
  inode = info.st_ino;
  return true;
}

}  // namespace

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

namespace {

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
  if (size < static_cast<off_t>(trace.mapped_bytes))
    return give_up(trace, nullptr, "find the arena of a trace file", EPROTO);
  void* base = mmap(nullptr, trace.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, trace.fd, 0);
  if (base == MAP_FAILED) return give_up(trace, nullptr, "map a trace file", errno);
  point_into(trace, static_cast<uint8_t*>(base));
  trace.ring = nullptr;
  return {nullptr, 0};
}

void unmap(Trace& trace) {
  if (trace.header) give_up(trace, nullptr, nullptr, 0);
}

}  // namespace lockstep::trace
