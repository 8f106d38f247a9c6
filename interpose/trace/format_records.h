// SPDX-License-Identifier: MIT
//
// Events of the ring, and the records of any length in the arena. See format.h.

#pragma once

#include "interpose/trace/format_slots.h"

namespace lockstep::trace {

// --- events --------------------------------------------------------------------------------------------------------------

enum class RecordKind : uint16_t {
  none = 0,
  call_begin = 1,  // before the real function runs
  call_end = 2,    // after it came back
  mark = 3,        // step, phase, sample, note
  // Since 2.0.
  host_begin = 4,  // before a host wait, a copy, a graph launch; for calls of kind "order" the only record
  host_end = 5,    // after it came back
  digest = 6,      // of an operation's input or output
};

enum CallFlags : uint16_t {
  kInPlace = 1,    // by NCCL's in-place rules for the function
  kInGroup = 2,    // inside ncclGroupStart/End: launched at the outermost ncclGroupEnd
  kCaptured = 4,   // the stream was capturing a graph
  kZeroCount = 8,  // count 0 collective: enqueues nothing and takes no sequence number
  kNested = 16,    // reserved: a public call made by NCCL itself
  kGivenBack = 32, // failed, or a member of a group that failed or was only simulated: its number was given back
  kTold = 64,      // since 2.0: told by NVTX or NCCL's profiler interface, not by a hook. dtype int8: count is bytes;
                   // dtype 255: unknown
};

// Index of a stack in the arena: byte offset / 8 of its ArenaHeader, 0 = none.
using StackRef = uint32_t;

struct Record {
  std::atomic<uint64_t> commit;  // sequence + 1, stored last; with kBusy while being written
  uint64_t stamp;
  uint16_t kind;                 // RecordKind
  uint16_t fn;                   // abi::Fn; MarkKind for marks
  uint32_t tid;
  union {
    struct {                     // call_begin
      uint32_t comm;             // serial of the communicator, 0 = none; an init call without a parent: the one it
                                 // makes; ncclGroupEnd: the one all its members are on
      int32_t peer;              // root or peer in the communicator's ranks, -1 = has none
      uint64_t count;            // elements; memory calls: bytes; init calls: ranks; ncclGroupEnd: members
      uint64_t seq;              // collective / edge / lifecycle number, see design.md; UINT64_MAX = takes none
      uint64_t sendbuff;
      uint64_t recvbuff;
      uint64_t stream;
      StackRef native_stack;
      uint32_t python_stack;     // 0 = none
      uint64_t step;             // valid with kHasStep in mark_bits
      int32_t redop;
      uint8_t dtype;
      uint8_t group_depth;
      uint16_t flags;            // CallFlags
      uint32_t group;            // number of the outermost group in this process, from 1; 0 = not in a group
      uint16_t thread_slot;
      uint16_t mark_bits;
      // Since 2.0: the end, unless a call_end says it. Not covered by `check`, which takes them as zero.
      uint64_t end_result;       // 16 bits ncclResult_t, 16 bits end_check(), 32 bits serial as in call_end; stored first
      uint64_t end_stamp;        // 0 = not returned
    } begin;
    struct {                     // call_end
      uint64_t begin;            // sequence of its call_begin
      int32_t result;            // ncclResult_t
      uint32_t comm;             // serial; for init calls the new communicator's (the first of ncclCommInitAll's)
      uint64_t reserved[10];
    } end;
    struct {                     // mark
      uint64_t value;
      uint16_t thread_slot;
      uint16_t length;           // of the text as given; longer ones are cut
      uint32_t reserved;
      char text[80];
    } mark;
    struct {                     // host_begin; fn is an id of host_functions.def
      uint64_t object;           // stream, event or graph; 0 = none, or the legacy default stream
      uint64_t other;            // the second handle: see host_functions.def
      uint64_t bytes;            // of a copy
      StackRef native_stack;
      uint32_t python_stack;
      uint64_t step;             // valid with kHasStep in mark_bits
      uint64_t comm_calls;       // NCCL operations this thread had made: tells what a wait is behind
      uint16_t thread_slot;
      uint16_t mark_bits;
      uint32_t reserved;
      uint64_t reserved64[3];
      uint64_t end_result;       // as in call_begin
      uint64_t end_stamp;
    } host;
    struct {                     // host_end
      uint64_t begin;            // sequence of its host_begin
      int32_t result;            // cudaError_t or CUresult
      uint32_t reserved;
      uint64_t reserved64[10];
    } host_end;
    struct {                     // digest; fn is the operation's
      uint64_t call;             // sequence of its call_begin
      uint64_t value;            // 64-bit digest of the bytes; see docs/trace-format.md
      uint64_t bytes;
      uint64_t seq;              // the operation's number on the communicator
      uint32_t comm;
      uint32_t output;           // 0 = of the input, taken at the call; 1 = of the output, taken when it was complete
      uint64_t reserved64[7];
    } digest;
    uint8_t bytes[96];
};
  uint32_t check;                // record_check() of the sequence and everything from stamp up to here
  uint32_t reserved;
};

// The checked part of a record as words: what a writer composes in registers and stores, and what a reader copied.
inline constexpr unsigned kRecordWords = 14;
static_assert(offsetof(Record, stamp) == 8 && offsetof(Record, check) == 8 + 8 * kRecordWords);

// The last two words of these are stored after the record is complete.
inline constexpr bool ends_in_place(uint16_t kind) {
  return kind == static_cast<uint16_t>(RecordKind::call_begin) || kind == static_cast<uint16_t>(RecordKind::host_begin);
}

// What `check` must hold. Four lanes, because this is computed in every call: each word goes through a bijection of its
// lane, so a record with one word torn never passes, and one with several torn passes once in 2^32.
__attribute__((always_inline)) inline uint32_t record_check(const uint64_t (&word)[kRecordWords], uint64_t sequence) {
  constexpr uint64_t kOdd[4] = {0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full, 0x165667b19e3779f9ull, 0xd6e8feb86659fd93ull};
  const auto eat = [&](uint64_t lane, unsigned i) {
    lane = (lane ^ word[i]) * kOdd[i & 3];
    return lane ^ (lane >> 29);
  };
  // Word i goes through lane i % 4. Written out, since compilers do not unroll it by themselves and it is in every call.
  const uint64_t a = eat(eat(eat(eat(sequence, 0), 4), 8), 12);
  const uint64_t b = eat(eat(eat(eat(~sequence, 1), 5), 9), 13);
  const uint64_t c = eat(eat(eat(0x5851f42d4c957f2dull, 2), 6), 10);
  const uint64_t d = eat(eat(eat(0x14057b7ef767814full, 3), 7), 11);
  const uint64_t sum = (a + b * 3) ^ (c * 5 + d * 7);
  return static_cast<uint32_t>(sum ^ (sum >> 32));
}

// What tells a true end in place from a damaged one.
__attribute__((always_inline)) inline uint16_t end_check(uint64_t sequence, uint64_t stamp, uint16_t result, uint32_t comm) {
  uint64_t sum = (stamp ^ (sequence << 17) ^ result) * 0x9e3779b97f4a7c15ull + comm;
  sum = (sum ^ (sum >> 29)) * 0xc2b2ae3d27d4eb4full;
  return static_cast<uint16_t>(sum >> 48);
}

// --- arena ---------------------------------------------------------------------------------------------------------------

enum class ArenaKind : uint16_t {
  none = 0,
  stack = 1,      // StackBody
  module_ = 2,    // ModuleBody
  text = 3,       // characters: "environment" lines, notes about the file itself
  snapshot = 4,   // SnapshotBody
  symbol = 5,     // SymbolBody
};
inline constexpr uint16_t kArenaCommitted = 0xC0DE;

struct ArenaHeader {           // 8-byte aligned; a reader that meets a hole looks for the next committed one
  uint32_t size;               // of the record with this header, a multiple of 8
  uint16_t kind;
  std::atomic<uint16_t> state; // kArenaCommitted, stored last
};

struct StackBody {
  uint64_t hash;
  uint32_t depth;
  uint32_t flags;              // 1 = cut at the deepest frame we keep
  uint64_t pc[];               // innermost first; return addresses, so look up pc - 1 for all but a signal frame
};

struct ModuleBody {
  uint64_t bias;               // load bias: file address = pc - bias
  uint64_t start, end;         // executable range it was found in
  uint64_t stamp;
  uint8_t build_id[32];
  uint32_t build_id_size;      // 0 = none
  uint32_t path_size;
  char path[];
};

enum class SnapshotSource : uint16_t { ptrace = 1, syscall_state = 2, signal = 3 };
struct SnapshotBody {
  int64_t wall_ns;
  int64_t mono_ns;
  uint32_t round;              // all threads of one snapshot share it
  uint32_t tid;
  uint16_t source;             // SnapshotSource
  char state;                  // letter from /proc/PID/task/TID/stat
  char why;                    // 'r' asked for by a rank, 'q' the process went quiet
  char thread_name[16];
  char wait_channel[32];       // /proc/PID/task/TID/wchan where readable
  uint32_t depth;
  uint64_t pc[];               // innermost first; pc[0] is the instruction itself, the others return addresses
};

struct SymbolBody {
  uint64_t pc;
  uint64_t offset;             // pc minus the start of the function
  uint32_t name_size;
  uint32_t file_size;          // 0 = no debug information
  uint32_t line;
  uint32_t reserved;
  char text[];                 // name, then file
};

static_assert(sizeof(Record) == 128);
static_assert(offsetof(Record, begin.end_stamp) == 112 && offsetof(Record, host.end_stamp) == 112);
static_assert(offsetof(Record, begin) == 24 && offsetof(Record, check) == 120);
static_assert(sizeof(ArenaHeader) == 8);

}  // namespace lockstep::trace
