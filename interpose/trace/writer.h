// SPDX-License-Identifier: MIT
//
// Writes one trace file, from inside the process it tells of (create) or from its supervisor (attach).
//
// This code runs inside somebody else's job, so it uses libc and nothing else: no exceptions, no allocation, no libstdc++
// beyond headers. `reserve` and `commit` take no lock and make no system call, but for the rare writer that outruns the
// helper thread and has to make room itself.
//
// A thread takes sequence numbers a block at a time: sixteen neighbouring slots are its own until it has filled them, so that
// most records cost plain stores and nothing that other processors must agree on. Who has which block is written in a
// table beside the file (`owners`); a writer that comes to a block which somebody who slept through a whole lap still holds
// leaves it alone and takes the next.
//
//   state of a ring slot      who                         seen by a reader as
//   free / holds an old one   the block's owner           the old record, or nothing
//   commit has kBusy          the block's owner           torn
//   body and check stored     the same                    torn
//   commit = sequence + 1     nobody, until it is lapped  a record
//
// In full mode the ring does not wrap: what comes when it is full, or when the disk is, goes nowhere and is counted. In both
// modes a writer that is ahead of a disk that does not answer waits for kSlowMs, once; then what it writes goes nowhere and
// is counted, until the disk has answered.
//
// Disk. Everything that is written to was allocated by posix_fallocate first, so that a full disk is an error code here
// and never a SIGBUS there. When the ring cannot grow, its length becomes what it has, for good, and it wraps earlier.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interpose/trace/format.h"

namespace lockstep::trace {

// A trace mapped into this process. All zero means none; trivially destructible, since a tracer leaks its state at exit.
struct Trace {
  FileHeader* header;
  Status* status;
  ThreadSlot* threads;
  CommSlot* comms;
  uint8_t* arena;
  Record* ring;
  uint64_t arena_bytes;      // reserved extent
  uint64_t mapped_bytes;
  int fd;                    // the only one this process ever opens: closing any other would drop the lock
  uint64_t device, inode;    // of the file: tells whether fd is still ours
  std::atomic<uint8_t>* owners;   // a byte a block of the ring: 1 = some thread writes there
  uint64_t owner_count;
  Record* nowhere;                // a block that is never read, for what finds no room
  bool full;                      // full mode: never wraps
  std::atomic<uint32_t> growing;  // held by whoever extends the ring
  std::atomic<uint32_t> helped;   // 1 = a helper thread extends it ahead of need
  std::atomic<uint32_t> slow;     // 1 = the last extension took kSlowMs or longer: left to the helper thread
  std::atomic<uint32_t> bell;     // rung for the helper when a writer enters a new segment
  char path[512];
};

// Why something failed: what was being done, and errno. `what` is nullptr on success.
struct Failure {
  const char* what;
  int error;
};

// Places of the areas in a file whose ring may grow to ring_bytes (a multiple of kSegmentBytes, at least one).
struct Layout {
  Area areas[kAreaCount];
  uint64_t total_bytes;
};
Layout make_layout(uint64_t ring_bytes);

// Makes `folder/<host>.<pid>.<start>.lstrace` and locks it. The header is copied; magic, version, sizes and areas are
// filled in here. The file carries its unfinished name until it is whole; `clocks` is read just before it gets its own.
Failure create(Trace& trace, const char* folder, const FileHeader& header, ClockPair first_clock, ClockPair (*clocks)(),
               uint64_t ring_bytes);

// Maps a trace that another process writes. Only `status` and the arena may then be written.
Failure attach(Trace& trace, const char* path);
void unmap(Trace& trace);  // for supervisors and tests; a traced process keeps its mapping until it dies

// Keeps `segments` of the ring allocated and touched beyond the newest record, and half a step of the arena. Called by the
// helper thread.
void grow_ahead(Trace& trace, unsigned segments);

// Room for an arena record, nullptr when there is none. Size is that of the body.
ArenaHeader* arena_reserve(Trace& trace, ArenaKind kind, size_t size);
inline void* arena_body(ArenaHeader* header) { return header + 1; }
inline void arena_commit(ArenaHeader* header) { header->state.store(kArenaCommitted, std::memory_order_release); }
inline uint32_t arena_ref(const Trace& trace, const ArenaHeader* header) {
  return static_cast<uint32_t>((reinterpret_cast<const uint8_t*>(header) - trace.arena) / 8);
}

// Whatever was stored before this is in memory before whatever is stored after it. x86 keeps stores in order by itself, so
// only the compiler has to be told (and thread sanitizers, which do not know fences, are content).
inline void keep_store_order() {
#if defined(__x86_64__)
  std::atomic_signal_fence(std::memory_order_release);
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

// --- the ring --------------------------------------------------------------------------------------------------------------

// Where one thread writes: the rest of its block. All zero means none.
struct Cursor {
  uint64_t next, end;  // sequence numbers
  Record* at;          // slot of `next`
  uint64_t block;      // of the ring, for giving it back; kNoBlock = what is written goes nowhere
};
inline constexpr uint64_t kNoBlock = UINT64_MAX;

void take_block(Trace& trace, Cursor& cursor);  // the slow path of reserve: gives the old block back
void give_block_back(Trace& trace, Cursor& cursor);
// Disk and memory for the block that begins there; returns its slot, kNoBlock when the disk is too slow to wait for.
uint64_t make_room(Trace& trace, uint64_t sequence);
inline constexpr int64_t kSlowMs = 500;

inline uint64_t slot_of(uint64_t sequence, uint64_t slots) {
  return (slots & (slots - 1)) == 0 ? sequence & (slots - 1) : sequence % slots;
}

// The next slot of this thread. A block that all others have lapped since is given up: its numbers are too old to be read.
__attribute__((always_inline)) inline Record* reserve(Trace& trace, Cursor& cursor, uint64_t& sequence) {
  const Status& status = *trace.status;
  if (__builtin_expect(cursor.next == cursor.end || status.ring_next.load(std::memory_order_relaxed) - cursor.next >
                                                        status.ring_slots.load(std::memory_order_relaxed), 0))
    take_block(trace, cursor);
  sequence = cursor.next++;
  Record* record = cursor.at++;
  record->commit.store((sequence + 1) | kBusy, std::memory_order_relaxed);
  keep_store_order();
  return record;
}

// The words are composed by the caller (see call_begin_words and its like), so that the check is computed from registers.
__attribute__((always_inline)) inline void commit(Record* record, const uint64_t (&word)[kRecordWords], uint64_t sequence) {
  auto* to = reinterpret_cast<uint64_t*>(record) + 1;
  // Written out, so that the words go from registers to the record and not by way of the stack.
  to[0] = word[0], to[1] = word[1], to[2] = word[2], to[3] = word[3], to[4] = word[4], to[5] = word[5];
  to[6] = word[6], to[7] = word[7], to[8] = word[8], to[9] = word[9], to[10] = word[10], to[11] = word[11];
  to[12] = word[12], to[13] = word[13];
  static_assert(kRecordWords == 14);
  to[kRecordWords] = record_check(word, sequence);  // and `reserved`, which is zero
  static_assert(offsetof(Record, check) == 8 + 8 * kRecordWords && offsetof(Record, reserved) == offsetof(Record, check) + 4);
  record->commit.store(sequence + 1, std::memory_order_release);
}

// --- composing records -------------------------------------------------------------------------------------------------------

struct BeginFields {
  uint64_t stamp;
  uint16_t fn;
  uint32_t tid;
  uint32_t comm;
  int32_t peer;
  uint64_t count, seq, sendbuff, recvbuff, stream;
  StackRef native_stack;
  uint32_t python_stack;
  uint64_t step;
  int32_t redop;
  uint8_t dtype, group_depth;
  uint16_t flags;
  uint32_t group;
  uint16_t thread_slot, mark_bits;
};

constexpr uint64_t word_of(uint32_t low, uint32_t high) { return low | static_cast<uint64_t>(high) << 32; }
constexpr uint64_t word_of(uint16_t a, uint16_t b, uint32_t high) {
  return word_of(static_cast<uint32_t>(a | static_cast<uint32_t>(b) << 16), high);
}

__attribute__((always_inline)) inline void write_begin(Record* record, uint64_t sequence, const BeginFields& f) {
  const uint32_t small = static_cast<uint32_t>(f.dtype | f.group_depth << 8 | static_cast<uint32_t>(f.flags) << 16);
  const uint32_t marks = static_cast<uint32_t>(f.thread_slot | static_cast<uint32_t>(f.mark_bits) << 16);
  const uint64_t word[kRecordWords] = {
      f.stamp,    word_of(static_cast<uint16_t>(RecordKind::call_begin), f.fn, f.tid),
      word_of(f.comm, static_cast<uint32_t>(f.peer)), f.count, f.seq, f.sendbuff, f.recvbuff, f.stream,
      word_of(f.native_stack, f.python_stack), f.step, word_of(static_cast<uint32_t>(f.redop), small),
      word_of(f.group, marks), 0, 0};
  commit(record, word, sequence);
}

// Is this record in the block that the cursor's thread owns now?
inline bool owns(const Cursor& cursor, uint64_t sequence) { return sequence - (cursor.end - kBlockSlots) < kBlockSlots; }

// The end of a call, into its begin record, while the thread owns it.
__attribute__((always_inline)) inline void end_in_place(Record* begin, uint64_t sequence, uint64_t stamp, int32_t result, uint32_t comm) {
  auto* words = reinterpret_cast<uint64_t*>(begin);
  constexpr size_t kResult = offsetof(Record, begin.end_result) / 8, kStamp = offsetof(Record, begin.end_stamp) / 8;
  static_assert(offsetof(Record, host.end_result) / 8 == kResult && offsetof(Record, host.end_stamp) / 8 == kStamp);
  const auto small = static_cast<uint16_t>(result);
  __atomic_store_n(words + kResult, word_of(small, end_check(sequence, stamp, small, comm), comm), __ATOMIC_RELAXED);
  __atomic_store_n(words + kStamp, stamp, __ATOMIC_RELEASE);
}

inline void write_end(Record* record, uint64_t sequence, uint64_t stamp, uint16_t fn, uint32_t tid, uint64_t begin,
                      int32_t result, uint32_t comm) {
  const uint64_t word[kRecordWords] = {stamp, word_of(static_cast<uint16_t>(RecordKind::call_end), fn, tid), begin,
                                       word_of(static_cast<uint32_t>(result), comm)};
  commit(record, word, sequence);
}

struct HostFields {
  uint64_t stamp;
  uint16_t fn;  // id in host_functions.def
  uint32_t tid;
  uint64_t object, other, bytes;
  StackRef native_stack;
  uint64_t step, comm_calls;
  uint16_t thread_slot, mark_bits;
};

inline void write_host_begin(Record* record, uint64_t sequence, const HostFields& f) {
  const uint64_t word[kRecordWords] = {f.stamp,
                                       word_of(static_cast<uint16_t>(RecordKind::host_begin), f.fn, f.tid),
                                       f.object,
                                       f.other,
                                       f.bytes,
                                       word_of(f.native_stack, uint32_t{0}),
                                       f.step,
                                       f.comm_calls,
                                       word_of(f.thread_slot, f.mark_bits, 0)};
  commit(record, word, sequence);
}

inline void write_host_end(Record* record, uint64_t sequence, uint64_t stamp, uint16_t fn, uint32_t tid, uint64_t begin,
                           int32_t result) {
  const uint64_t word[kRecordWords] = {stamp, word_of(static_cast<uint16_t>(RecordKind::host_end), fn, tid), begin,
                                       word_of(static_cast<uint32_t>(result), 0u)};
  commit(record, word, sequence);
}

struct DigestFields {
  uint64_t stamp;
  uint16_t fn;  // abi::Fn
  uint32_t tid;
  uint64_t call, value, bytes, seq;
  uint32_t comm;
  bool output;
};

inline void write_digest(Record* record, uint64_t sequence, const DigestFields& f) {
  const uint64_t word[kRecordWords] = {f.stamp, word_of(static_cast<uint16_t>(RecordKind::digest), f.fn, f.tid), f.call,
                                       f.value, f.bytes, f.seq, word_of(f.comm, f.output ? 1u : 0u)};
  commit(record, word, sequence);
}

// The text may be nullptr; length is that of the text as given, and what does not fit is cut.
void write_mark(Record* record, uint64_t sequence, uint64_t stamp, uint16_t kind, uint32_t tid, uint64_t value,
                uint16_t thread_slot, const char* text, size_t length);

// --- blocks rewritten in place ---------------------------------------------------------------------------------------------

// One writer at a time. Between the two the block is torn.
inline void open_seqlock(Seqlock& lock) {
  lock.store(lock.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
  keep_store_order();
}
inline void close_seqlock(Seqlock& lock) {
  lock.store((lock.load(std::memory_order_relaxed) | 1) + 1, std::memory_order_release);
}

// Copies a text into a field that must end in a zero byte. Of length 0 it may be nullptr.
inline void put_text(char* field, size_t size, const char* text, size_t length) {
  const size_t n = length < size - 1 ? length : size - 1;
  if (n) __builtin_memcpy(field, text, n);
  __builtin_memset(field + n, 0, size - n);
}

}  // namespace lockstep::trace
