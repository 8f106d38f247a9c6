// SPDX-License-Identifier: MIT
//
// The fixed areas: what stands in a trace file for every thread and every communicator, however long ago its calls were.
// See format.h.

#pragma once

#include "interpose/trace/format_process.h"

namespace lockstep::trace {

// --- threads -------------------------------------------------------------------------------------------------------------

enum MarkKind : uint32_t {
  kMarkStep = 1,
  kMarkPhase = 2,
  kMarkSample = 3,
  kMarkNote = 4,
  kMarkCommName = 5,
  kMarkBlind = 6,  // made by the shim itself: value = communicator's serial (0: all), text = what began
};
enum MarkBits : uint32_t { kHasStep = 1, kHasPhase = 2, kHasSample = 4 };

struct Marks {  // writer: the thread itself
  Seqlock lock;
  uint32_t bits;             // MarkBits: which of these were ever given
  uint64_t step;
  uint64_t sample_value;
  char phase[32];
  char sample[96];
};

struct ThreadSlot {
  std::atomic<uint32_t> tid;                // process: 0 = free
  std::atomic<uint32_t> state;              // helper: letter from /proc/PID/task/TID/stat (R, S, D, ...), 0 = not looked yet
  char name[16];                            // helper
  std::atomic<uint64_t> open_call;          // process: event sequence + 1 of the call it is in, 0 = in none
  std::atomic<uint64_t> open_stamp;         // process: when that call began; stored before open_call
  std::atomic<uint64_t> cpu_ns;             // helper
  Marks marks;
  // Since 2.0: the host wait (or graph launch) it is in. Object and function are stored before open_wait.
  std::atomic<uint64_t> open_wait;          // process: event sequence + 1, 0 = in none
  std::atomic<uint64_t> wait_stamp;         // process
  uint64_t wait_object;                     // process: the stream, event or graph
  uint32_t wait_fn;                         // process: id in host_functions.def
  uint32_t reserved32;
  uint8_t reserved[24];
};

// --- communicators -------------------------------------------------------------------------------------------------------

enum class CommState : uint32_t {
  free = 0,
  initialising = 1,  // inside ncclCommInit*, or nonblocking and not ready yet
  live = 2,
  finalized = 3,
  destroyed = 4,
  aborted = 5,
  failed = 6,        // the init call failed
  revoked = 7,
};

// One call as a communicator remembers it. `event` is stored last; 0 = empty, with kBusy = being written.
inline constexpr uint64_t kBusy = 1ull << 63;
struct CallSummary {
  std::atomic<uint64_t> event;  // event sequence + 1
  uint64_t seq;                 // collective number on this communicator from 0, or edge number for p2p
  uint64_t stamp;               // when it was called
  uint64_t count;
  uint16_t fn;                  // abi::Fn
  uint8_t dtype;
  uint8_t flags;                // CallFlags, low byte
  int32_t redop;
  int32_t peer;                 // root or peer; -1 = has none
  uint32_t native_stack;        // StackRef
  uint32_t tid;
  uint32_t group;
  std::atomic<uint64_t> returned;  // stamp of the return, 0 = not returned
};

inline constexpr uint32_t kRecentCalls = 8;

// What the caller asked for in ncclConfig_t. A field is read only where the caller's own `size` says that it has it.
struct CommConfig {
  uint32_t size;           // ncclConfig_t.size as given; 0 = made without one
  int32_t blocking;        // this and all below: INT32_MIN = not given
  int32_t cga_cluster_size;
  int32_t min_ctas;
  int32_t max_ctas;
  int32_t split_share;
  int32_t traffic_class;
  int32_t collnet_enable;
  int32_t cta_policy;
  int32_t shrink_share;
  char net_name[16];
};
static_assert(sizeof(CommConfig) == 56);

struct CommSlot {  // writer: process
  std::atomic<uint32_t> serial;  // number of the communicator in this process from 1; 0 = free slot. Stored last.
  std::atomic<uint32_t> state;   // CommState
  uint64_t id;                   // NCCL's commHash, equal on all ranks; 0 = not known yet
  uint64_t parent_id;            // of a split or shrunk communicator; 0 = none
  uint32_t parent_serial;
  uint32_t generation;           // counts communicators of this process with the same id and rank, from 0; a child's is
                                 // its parent's
  int32_t rank;                  // rank of this process (or thread) in it; -1 = not known yet
  int32_t nranks;
  int32_t device;                // CUDA device; -1 = not known
  uint32_t creator_tid;          // thread that made it: tells ranks apart that are threads of one process
  uint64_t handle;               // ncclComm_t, for reading raw dumps only: handles are reused
  uint64_t created_stamp;
  uint64_t ready_stamp;          // 0 = init not finished
  uint64_t ended_stamp;          // destroy, abort or finalize called; 0 = not
  int32_t color;                 // of a split, else INT32_MIN
  int32_t key;
  uint32_t split_count;          // which split of the parent, from 1; 0 = not a split
  uint32_t life_seq;             // lifecycle calls (init, split, finalize, ...) on it so far
  char name[48];                 // ncclConfig commName or a name given by a mark; empty = none

  std::atomic<uint64_t> coll_called;     // collectives called so far = number of the next one
  std::atomic<uint64_t> coll_returned;   // collectives whose call came back
  std::atomic<uint64_t> coll_started;    // UINT64_MAX = not known
  std::atomic<uint64_t> coll_completed;  // UINT64_MAX = not known
  std::atomic<uint64_t> p2p_called;
  std::atomic<uint64_t> p2p_returned;
  std::atomic<uint64_t> recent_next;     // calls remembered so far; the newest is recent[(recent_next - 1) % kRecentCalls]

  // Since 2.0.
  std::atomic<uint64_t> p2p_started;     // as coll_started: how many, UINT64_MAX = not known
  std::atomic<uint64_t> p2p_completed;
  std::atomic<uint64_t> last_stream;     // process: stream of its last operation
  std::atomic<uint64_t> captured;        // process: operations on it that were captured into graphs
  std::atomic<uint32_t> blind;           // process: BlindBits
  std::atomic<uint32_t> unwatched;       // process: operations without start and completion, all probes being out
  CommConfig config;
  std::atomic<uint64_t> moved_stamp;     // helper: when an operation was last seen to start or complete; 0 = not known
  // helper: one more than the number of a collective that had not started when the driver was last asked, as none behind
  // it had; 0 = not known.
  std::atomic<uint64_t> coll_unstarted;
  uint8_t reserved[200];

  CallSummary recent[kRecentCalls];
};

static_assert(sizeof(ThreadSlot) == 256);
static_assert(sizeof(CallSummary) == 64);
static_assert(sizeof(CommSlot) == 1024);

}  // namespace lockstep::trace
