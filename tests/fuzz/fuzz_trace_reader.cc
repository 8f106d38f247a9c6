// SPDX-License-Identifier: MIT
//
// Feeds the trace reader damaged files. A random file would be refused at its first eight bytes, so an input is read as
// a list of patches to a small correct file whose areas lie close together; an input that begins with 'L' is the file
// itself.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "interpose/trace/reader.h"
#include "interpose/trace/writer.h"

namespace {

using namespace lockstep::trace;

constexpr uint64_t kThreadBytes = 4 * sizeof(ThreadSlot), kCommBytes = 2 * sizeof(CommSlot), kSmallArena = 2048;
constexpr uint64_t kRingSlots = 16;
constexpr uint64_t kTotal =
    sizeof(FileHeader) + sizeof(Status) + kThreadBytes + kCommBytes + kSmallArena + kRingSlots * sizeof(Record);

struct Base {
  alignas(4096) char bytes[kTotal] = {};
  Base() {
    auto& header = *reinterpret_cast<FileHeader*>(bytes);
    memcpy(header.magic, kMagic, sizeof kMagic);
    header.version_major = kVersionMajor;
    header.header_size = sizeof header;
    header.byte_order = kByteOrderMark;
    uint64_t at = sizeof header;
    const auto place = [&](AreaIndex index, uint64_t size, uint32_t record) {
      header.areas[index] = {at, size, record, 0};
      at += size;
    };
    place(kStatusArea, sizeof(Status), sizeof(Status));
    place(kThreadArea, kThreadBytes, sizeof(ThreadSlot));
    place(kCommArea, kCommBytes, sizeof(CommSlot));
    place(kArenaArea, kSmallArena, 0);
    place(kRingArea, kRingSlots * sizeof(Record), sizeof(Record));
    Trace trace = {};
    trace.header = &header;
    trace.status = reinterpret_cast<Status*>(bytes + header.areas[kStatusArea].offset);
    trace.arena = reinterpret_cast<uint8_t*>(bytes + header.areas[kArenaArea].offset);
    trace.ring = reinterpret_cast<Record*>(bytes + header.areas[kRingArea].offset);
    trace.arena_bytes = kSmallArena;
    Status& status = *trace.status;
    status.first_clock = {1000, 1000, 1000};
    status.second_clock = {2000, 2000, 2000};
    status.ring_slots = status.ring_allocated = kRingSlots;
    status.arena_next = 8;
    status.arena_allocated = kSmallArena;
    reinterpret_cast<ThreadSlot*>(bytes + header.areas[kThreadArea].offset)->tid = 5;
    reinterpret_cast<CommSlot*>(bytes + header.areas[kCommArea].offset)->serial = 1;
    for (uint16_t kind = 1; kind <= static_cast<uint16_t>(ArenaKind::symbol); kind++)
      arena_commit(arena_reserve(trace, static_cast<ArenaKind>(kind), 128));
    for (uint64_t i = 0; i < 6; i++) {
      uint64_t sequence, ended;
      Record* begin = &trace.ring[sequence = status.ring_next++];
      write_begin(begin, sequence, {.stamp = 1500 + i, .fn = 60, .tid = 5, .comm = 1, .native_stack = 1});
      Record* end = &trace.ring[ended = status.ring_next++];
      write_end(end, ended, 1600 + i, 60, 5, sequence, 0, 1);
    }
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Base base;
  static const int fd = memfd_create("trace", 0);
  std::string file;
  if (size && data[0] == 'L') {
    file.assign(reinterpret_cast<const char*>(data), size);
  } else {
    file.assign(base.bytes, kTotal);
    for (size_t i = 0; i + 3 <= size; i += 3)
      file[(data[i] | data[i + 1] << 8) % kTotal] = static_cast<char>(data[i + 2]);
  }
  if (ftruncate(fd, 0) != 0 || pwrite(fd, file.data(), file.size(), 0) != static_cast<ssize_t>(file.size())) abort();
  const lockstep::Result<TraceFile> result = read_trace("/proc/self/fd/" + std::to_string(fd));
  if (size == 0 && (!result || result->calls.size() != 6)) abort();  // the base itself must be a good file
  if (result)
    for (const Call& call : result->calls) (void)result->stack(call.stack);
  return 0;
}
