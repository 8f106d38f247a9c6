// SPDX-License-Identifier: MIT
//
// Reads one trace file, finished, torn or still being written, into plain values. The reader judges nothing: it pairs
// begins with ends, turns stamps into times, checks every length against the file, and reports what it had to leave out.
// It never trusts a number in the file: a hostile file costs a sentence, not a crash.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/abi/functions.h"
#include "interpose/abi/host_functions.h"
#include "interpose/trace/format.h"
#include "interpose/trace/result.h"

namespace lockstep::trace {

// A point in time on the traced process's own clocks. Both are nanoseconds; 0 = not known.
struct Time {
  int64_t mono_ns = 0;
  int64_t wall_ns = 0;
};

struct Call {
  uint64_t event = 0;        // sequence number in this process; two calls of one thread are ordered by it
  uint16_t fn = 0;           // abi::Fn, or a number this build does not know
  uint32_t tid = 0;
  uint32_t comm = 0;         // serial of the communicator in this file; 0 = none
  int32_t peer = -1;         // root or peer, a rank of the communicator; -1 = has none
  uint64_t count = 0;
  uint64_t seq = UINT64_MAX; // collective / edge / lifecycle number; UINT64_MAX = takes none, or gave it back (kGivenBack)
  int32_t redop = 0;
  uint8_t dtype = 0;
  uint8_t group_depth = 0;   // 0 outside; GroupStart and GroupEnd: the depth they open and close, 1 = outermost
  uint16_t flags = 0;        // CallFlags
  uint32_t group = 0;
  uint64_t sendbuff = 0, recvbuff = 0, stream = 0;
  StackRef stack = 0;
  std::optional<uint64_t> step;
  Time called;
  bool returned = false;
  Time return_time;
  int32_t result = 0;        // ncclResult_t, valid when returned
  uint32_t new_comm = 0;     // init calls: serial of the communicator made (CommInitAll: of the first, others follow)
};

// A host thread waiting for, ordering or launching work on streams.
struct HostCall {
  uint64_t event = 0;
  uint16_t fn = 0;           // id in host_functions.def, or a number this build does not know
  abi::HostKind kind = abi::HostKind::wait;
  uint32_t tid = 0;
  uint64_t object = 0;       // wait: the stream or event; cudaEventRecord: the event; cudaStreamWaitEvent: the waiting
                             // stream; graph launch: the graph
  uint64_t other = 0;        // cudaEventRecord: the stream; cudaStreamWaitEvent: the event; graph launch: the stream
  uint64_t bytes = 0;
  uint64_t comm_calls = 0;   // NCCL operations this thread had made by then
  StackRef stack = 0;
  std::optional<uint64_t> step;
  Time called;
  bool returned = false;     // calls of kind `order` have one record and count as returned
  Time return_time;
  int32_t result = 0;        // valid when returned
};

// 64 bits over the bytes of an operation's input or output, as they were at the call or on its completion.
struct Digest {
  uint64_t call = 0;         // event of the operation
  uint16_t fn = 0;           // abi::Fn
  uint32_t comm = 0;
  uint64_t seq = UINT64_MAX;
  bool output = false;
  uint64_t value = 0, bytes = 0;
  Time when;
};

struct MarkEvent {
  uint64_t event = 0;
  uint32_t tid = 0;
  uint32_t kind = 0;         // MarkKind
  uint64_t value = 0;
  std::string text;
  Time when;
};

struct ThreadInfo {
  uint32_t tid = 0;
  char state = 0;
  std::string name;
  std::optional<uint64_t> open_call;  // event of the call it is in
  uint64_t cpu_ns = 0;
  std::optional<uint64_t> step;
  std::string phase, sample;          // empty = never marked; a numeric sample reads as its digits
  std::optional<uint64_t> open_wait;  // event of the host wait it is in; what it waits for is known even when the ring has
  uint16_t wait_fn = 0;               // wrapped: id in host_functions.def,
  uint64_t wait_object = 0;           // the stream, event or graph,
  Time wait_since;                    // and since when
};

struct CommInfo {
  uint32_t serial = 0;
  CommState state = CommState::free;
  uint64_t id = 0, parent_id = 0;
  uint32_t parent_serial = 0, generation = 0;
  int32_t rank = -1, nranks = -1, device = -1;
  uint32_t creator_tid = 0;
  uint64_t handle = 0;
  Time created, ready, ended;         // wall_ns 0 = has not happened
  int32_t color = INT32_MIN, key = 0;
  uint32_t split_count = 0, life_seq = 0;
  std::string name;
  uint64_t coll_called = 0, coll_returned = 0, p2p_called = 0, p2p_returned = 0;
  std::optional<uint64_t> coll_started, coll_completed;  // how many; no value = not known
  std::optional<uint64_t> p2p_started, p2p_completed;
  std::optional<uint64_t> coll_unstarted;  // this collective and all behind it had not started; no value = not known
  Time moved;                         // when an operation was last seen to start or complete; wall_ns 0 = not known
  uint64_t last_stream = 0;           // of its last operation
  uint64_t captured = 0;              // operations captured into graphs: their replays are graph launches
  uint64_t unwatched = 0;             // operations whose start and completion were not watched
  uint32_t blind = 0;                 // BlindBits: what communicates without calls that could be seen
  CommConfig config{};
  std::vector<Call> recent;           // the last few calls from the fixed area, oldest first (fewer fields than in `calls`)
};

struct Module {
  uint64_t bias = 0, start = 0, end = 0;
  std::string build_id;               // lower-case hex; empty = none
  std::string path;
};

struct Snapshot {
  Time when;
  uint32_t round = 0, tid = 0;
  SnapshotSource source = SnapshotSource::ptrace;
  char state = 0, why = 0;
  std::string thread_name, wait_channel;
  std::vector<uint64_t> pcs;          // innermost first; pcs[0] exact, the others return addresses
};

struct Symbol {
  uint64_t pc = 0, offset = 0;
  std::string function, file;
  uint32_t line = 0;
};

struct TraceFile {
  std::string path;
  FileHeader header;                  // every text in it is terminated
  bool status_known = false;          // false: cut off in front of it, so nothing below is known
  bool heartbeat_known = false;
  uint64_t beats = 0;
  Time last_beat;
  uint64_t cpu_ns = 0;
  uint32_t threads_alive = 0;
  ExitKind exit_kind = ExitKind::none;
  int32_t exit_code = 0;
  Time exit_time;
  SupervisorState supervisor = SupervisorState::none;
  int32_t supervisor_code = 0;
  Time supervisor_time;
  uint64_t peak_rss_bytes = 0;
  bool recording = true;
  Time last_call;                     // newest begin or end

  uint64_t events = 0;                // recorded, torn and overwritten ones
  uint64_t dropped = 0;               // never written: no room
  uint64_t overwritten = 0;           // gone because the ring wrapped
  uint64_t torn = 0;                  // reserved but incomplete
  uint64_t arena_dropped = 0;         // stacks, modules, snapshots and texts that found no room
  uint64_t comms_dropped = 0;         // communicators that took the slot of one that had ended, or found none

  // Of files of format 1.1 and later; else nothing is known.
  StatesKnown states = StatesKnown::no_driver;
  Time driver_asked, driver_answered; // asked long after the last answer: the driver does not answer
  uint64_t host_waits = 0, graph_launches = 0, captured_calls = 0, digests_dropped = 0;
  uint32_t blind = 0;                 // BlindBits

  std::vector<Call> calls;            // by event; a wrapped ring starts late
  std::vector<HostCall> host_calls;   // by event
  std::vector<Digest> digests;        // by event
  std::vector<MarkEvent> marks;       // by event
  std::vector<ThreadInfo> threads;
  std::vector<CommInfo> comms;        // by serial
  std::vector<Module> modules;
  std::vector<Snapshot> snapshots;    // in the order taken
  std::vector<Symbol> symbols;
  std::vector<std::string> texts;
  std::vector<std::string> problems;  // one sentence each: what was left out and why

  // A line "NAME=value" of the environment as it was when recording started; NCCL_*, LOCKSTEP* and the launchers' names.
  std::optional<std::string> environment(std::string_view name) const;

  // Return addresses of a recorded stack, innermost first; empty for 0 or a reference that leads nowhere.
  std::vector<uint64_t> stack(StackRef ref) const;

  std::vector<uint8_t> arena;         // kept for stack()
};

// Reads a trace file. An error means nothing of it can be used: not a trace, too short for its header, of a newer format.
Result<TraceFile> read_trace(const std::string& path);
// The same without arena and events: who the process is, its state, threads and communicators.
Result<TraceFile> read_head(const std::string& path);

// Is the process of this trace alive now? Asked of the lock it holds on the file (fcntl F_GETLK), and of /proc only when
// boot id, pid namespace and start time match this machine's, so a copied trace is never judged by local pids.
enum class Liveness { alive, dead, elsewhere };
Liveness look_alive(const TraceFile& file);

}  // namespace lockstep::trace
