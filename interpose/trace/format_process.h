// SPDX-License-Identifier: MIT
//
// What stands once in a trace file: its sizes, who the process is, and how it is and how it ended. See format.h.

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

static_assert(sizeof(FileHeader) == 4096);
static_assert(sizeof(Status) == 4096);

}  // namespace lockstep::trace
