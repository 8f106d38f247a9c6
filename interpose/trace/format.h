// SPDX-License-Identifier: MIT
//
// The trace file, byte for byte. See docs/trace-format.md for the same in prose with a worked example.
//
// One file a process, mapped MAP_SHARED by the process that writes it, so whatever was stored before a SIGKILL is in the
// page cache and stays. Nothing is ever flushed, moved or rewritten by a call; a reader may map the file at any instant.
//
//   +----------------+ 0
//   | FileHeader     |  who the process is; written once, before the file gets its final name
//   +----------------+ header.areas[kStatusArea].offset
//   | Status         |  heartbeat, clocks, exit record, counters; rewritten in place
//   +----------------+ areas[kThreadArea]
//   | ThreadSlot []  |  per thread: what it is in now, its last step / phase / sample
//   +----------------+ areas[kCommArea]
//   | CommSlot []    |  per communicator: members as known, last calls; survives a wrapped ring
//   +----------------+ areas[kArenaArea]
//   | arena          |  append-only records of any length: stacks, modules, texts, snapshots, symbols
//   +----------------+ areas[kRingArea]
//   | Record [] ...  |  128-byte events; grows a segment at a time up to areas[kRingArea].size, then wraps
//   +----------------+
//
// Who may write what: every field has one writing party, named beside it. "process" = threads of the traced process
// through the shim; "helper" = the shim's helper thread; "supervisor" = `lockstep run`, from outside. Counters marked
// "any" are reserved by atomic addition, from inside or outside.
//
// Torn writes. A Record is complete when `commit` holds its sequence number plus one, stored last with release order,
// and `check` fits; anything else is a torn or overwritten record and is skipped and counted. While it is being written
// `commit` also has kBusy. A thread takes kBlockSlots neighbouring numbers at a time and is the only one to write in
// their slots; a block still held by somebody who slept through a whole lap is left alone, so that a thread that was not
// running never spoils another's record. Numbers given up so are counted in ring_skipped. An arena record is complete
// when `state` is kArenaCommitted. Blocks that are rewritten in place carry a Seqlock word: odd while being written.
// A reader copies, then compares the word before and after.
//
// The end of a call is stored into its begin record: result first, then the stamp, two whole words that `check` does not
// cover. Only while the thread still owns the block; else (it made other records in between) as a record of its own.
//
// Versions. `version_major` changes when an old reader would misread a new file: it must refuse. `version_minor` changes
// when fields were added in reserved space, areas, arena kinds or record kinds: an old reader skips what it does not know.
// A field is never moved or given another meaning; a field no longer used stays and is said to be retired.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::trace {

inline constexpr char kMagic[8] = {'L', 'S', 'T', 'R', 'A', 'C', 'E', '\0'};
inline constexpr uint16_t kVersionMajor = 2;
inline constexpr uint16_t kVersionMinor = 0;
inline constexpr uint16_t kOldestMajor = 1;  // what the reader still reads
inline constexpr uint64_t kByteOrderMark = 0x0102030405060708ull;
inline constexpr char kFileSuffix[] = ".lstrace";
inline constexpr char kUnfinishedSuffix[] = ".lstrace.tmp";  // until the header is whole
inline constexpr char kSnapshotRequestFile[] = "snapshot.request";

inline constexpr uint64_t kSegmentBytes = 1u << 20;       // the ring grows by this much
inline constexpr uint64_t kArenaStepBytes = 256u << 10;   // the arena grows by this much
inline constexpr uint64_t kDefaultRingBytes = 64u << 20;  // cap of the ring
inline constexpr uint64_t kArenaBytes = 16u << 20;        // cap of the arena
inline constexpr uint64_t kBlockSlots = 16;               // records a thread reserves at a time
inline constexpr uint32_t kThreadSlots = 512;
inline constexpr uint32_t kCommSlots = 1024;

// A word in front of a block that is rewritten in place. Odd = being written.
using Seqlock = std::atomic<uint32_t>;
static_assert(sizeof(Seqlock) == 4 && std::atomic<uint64_t>::is_always_lock_free);

// --- header --------------------------------------------------------------------------------------------------------------

struct Area {
  uint64_t offset;       // from the start of the file, bytes
  uint64_t size;         // reserved extent, bytes; the file may be shorter
  uint32_t record_size;  // bytes of one record; 0 = variable
  uint32_t reserved;
};
enum AreaIndex : uint32_t { kStatusArea, kThreadArea, kCommArea, kArenaArea, kRingArea, kAreaCount = 8 };

enum class ClockSource : uint32_t { monotonic_ns = 0, tsc = 1 };  // what `stamp` fields count
enum class RankSource : uint32_t { none, rank, slurm, ompi, pmi };  // RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK
enum class TraceMode : uint32_t { ring = 0, full = 1 };

struct FileHeader {  // writer: process, before the rename to the final name
  char magic[8];
  uint16_t version_major;
  uint16_t version_minor;
  uint32_t header_size;  // sizeof(FileHeader) of the writer
  uint64_t byte_order;   // kByteOrderMark
  Area areas[kAreaCount];

  int32_t pid;
  int32_t parent_pid;
  uint64_t pid_start_ticks;  // field 22 of /proc/PID/stat: tells a reused pid
  uint64_t pid_namespace;    // inode of /proc/self/ns/pid
  char boot_id[40];          // /proc/sys/kernel/random/boot_id
  char host[64];
  char exe[256];
  char command[512];         // arguments, separated by blanks, cut to fit
  int64_t opened_wall_ns;
  int64_t opened_mono_ns;

  RankSource rank_source;
  int32_t env_rank;          // -1 = not known from the environment
  int32_t env_world_size;    // -1 = not known
  int32_t env_local_rank;    // -1 = not known
  char run_id[96];           // equal in all processes of one run of a job; see docs/trace-format.md, "Runs"
  uint32_t restart_count;
  int32_t supervisor_pid;    // 0 = started without `lockstep run`

  ClockSource clock_source;
  TraceMode mode;
  uint32_t nccl_version;     // NCCL_VERSION_CODE as ncclGetVersion says; 0 = unknown
  uint32_t hang_ms;          // LOCKSTEP_HANG_SECONDS at start
  char nccl_path[256];
  char lockstep_version[32];
  uint32_t stacks_enabled;   // 0: no native stacks, see stacks_note
  char stacks_note[96];      // why not
  uint8_t reserved[2444];
};

// --- status --------------------------------------------------------------------------------------------------------------

// One reading of all clocks. Two of them tie `stamp` to both clocks; readers interpolate, and extrapolate past the last.
struct ClockPair {
  uint64_t stamp;
  int64_t mono_ns;
  int64_t wall_ns;
};

struct Heartbeat {  // writer: helper, once a second
  Seqlock lock;
  uint32_t threads;          // number of threads of the process
  uint64_t count;            // beats so far
  ClockPair clock;           // when
  uint64_t cpu_ns;           // user + system time of the process
  uint64_t reserved[3];
};

enum class ExitKind : uint32_t { none = 0, exit = 1, fatal_signal = 2 };
struct ExitRecord {  // writer: process (on_exit or the fatal-signal handler); kind is stored last
  std::atomic<uint32_t> kind;
  int32_t code;              // exit status or signal number
  int64_t wall_ns;
  int64_t mono_ns;
  uint32_t tid;
  uint32_t reserved;
};

enum class SupervisorState : uint32_t { none = 0, watching = 1, exited = 2, signalled = 3, gone = 4 };
struct SupervisorRecord {  // writer: supervisor; state is stored last. `gone`: it ended, but not as a child whose status we got
  std::atomic<uint32_t> state;
  int32_t code;              // exit status or signal number; `gone`: -1 = it had ended before it was first looked at,
                             // so wall_ns says when that was noticed, not when it ended
  int64_t wall_ns;
  uint64_t peak_rss_bytes;   // 0 = not known
  uint64_t reserved;
};

struct Status {
  Heartbeat heartbeat;
  ClockPair first_clock;                   // writer: process, at the beginning of open
  ClockPair second_clock;                  // writer: process, at the end of open: a rate before the first heartbeat
  ExitRecord exit;
  SupervisorRecord supervisor;

  std::atomic<uint64_t> ring_next;         // any: next sequence number to hand out
  std::atomic<uint64_t> ring_slots;        // process: slots in use for wrapping; shrinks for good when the disk is full
  std::atomic<uint64_t> ring_allocated;    // process: slots backed by disk; grows up to ring_slots
  std::atomic<uint64_t> events_dropped;    // process: events that found no room: the disk full (full mode), or too slow
  std::atomic<uint64_t> arena_next;        // any: next byte to hand out, from the start of the arena
  std::atomic<uint64_t> arena_allocated;   // any: bytes backed by disk
  std::atomic<uint64_t> arena_dropped;     // any: records that found no room
  std::atomic<uint64_t> comms_created;     // process: next communicator serial is this plus one
  std::atomic<uint64_t> comms_dropped;     // process: communicators that found no slot
  std::atomic<uint64_t> calls_unhooked;    // process: calls passed on without a record (real function missing, recursion)
  std::atomic<uint64_t> last_call_stamp;   // process: stamp of the newest begin or end; tells a quiet process
  std::atomic<uint32_t> snapshots_taken;   // any
  std::atomic<uint32_t> recording;         // process: 1 while recording, 0 after a failure inside the shim
  std::atomic<uint32_t> process_marks;     // process: ThreadSlot index + 1 of the last thread that made a mark; 0 = none
  uint32_t reserved32;
  std::atomic<uint64_t> ring_skipped;      // process: numbers given up because their slot was not free

  // Since 2.0.
  std::atomic<uint32_t> states;            // process: StatesKnown, whether started and completed are watched
  uint32_t reserved32b;
  std::atomic<uint64_t> driver_asked;      // driver thread: stamp of its last question to the driver, 0 = never asked
  std::atomic<uint64_t> driver_answered;   // driver thread: stamp of the last answer; older than driver_asked for long =
                                           // the driver itself does not answer
  std::atomic<uint64_t> host_waits;        // process: host waits begun (see HostCall records)
  std::atomic<uint64_t> graph_launches;    // process: graphs launched; each repeats the NCCL calls captured in it
  std::atomic<uint64_t> captured_calls;    // process: NCCL calls made under capture
  std::atomic<uint64_t> digests_dropped;   // process: operations whose digest was wanted and not taken
  std::atomic<uint32_t> blind;             // process: BlindBits of the whole process
  uint32_t reserved32c;
  std::atomic<uint64_t> ring_block;        // process: numbers a thread takes at a time; 0 = one (before 2.0)
  uint8_t reserved[3728];
};

// Why started and completed are known or not.
enum class StatesKnown : uint32_t {
  no_driver = 0,   // no CUDA driver in the process so far
  watched = 1,
  switched_off = 2,
  failed = 3,      // the driver lacks a function that is needed
};

// What communicates from here on without any call that could be seen.
enum BlindBits : uint32_t {
  kBlindDeviceApi = 1,  // ncclDevCommCreate: kernels communicate by themselves
  kBlindWindow = 2,     // ncclCommWindowRegister: peers may read and write the window
  kBlindGraph = 4,      // calls were captured into a graph: replays are seen as graph launches only
};

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
  uint8_t reserved[208];

  CallSummary recent[kRecentCalls];
};

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

// --- promises ------------------------------------------------------------------------------------------------------------

static_assert(sizeof(FileHeader) == 4096);
static_assert(sizeof(Status) == 4096);
static_assert(sizeof(ThreadSlot) == 256);
static_assert(sizeof(CallSummary) == 64);
static_assert(sizeof(CommSlot) == 1024);
static_assert(sizeof(Record) == 128);
static_assert(offsetof(Record, begin.end_stamp) == 112 && offsetof(Record, host.end_stamp) == 112);
static_assert(offsetof(Record, begin) == 24 && offsetof(Record, check) == 120);
static_assert(sizeof(ArenaHeader) == 8);

}  // namespace lockstep::trace
