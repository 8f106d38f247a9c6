// SPDX-License-Identifier: MIT
//
// Reading a trace, as a table of contents: header, status, threads, communicators, arena, ring. Each part checks its
// own extent against the file, so a file that was cut anywhere gives up what lies before the cut.

#include "interpose/trace/reader.h"

#include <algorithm>
#include <cstring>

#include "interpose/trace/reader_parts.h"

namespace lockstep::trace {
namespace {

using detail::Clock;
using detail::Extent;
using detail::InputFile;

constexpr int kTries = 8;  // a block that is being rewritten each time we look was left so by a killed writer

template <class T>
struct Copy {  // room for a T whose bytes come from the file; T may hold atomics and so cannot be assigned
  alignas(T) unsigned char bytes[sizeof(T)] = {};
  const T& operator*() const { return *reinterpret_cast<const T*>(bytes); }
  const T* operator->() const { return reinterpret_cast<const T*>(bytes); }
};

template <class T>
bool copy(const InputFile& file, uint64_t offset, Copy<T>& to) {
  return file.read(offset, to.bytes, sizeof(T)) == sizeof(T);
}

// Copies a block guarded by a Seqlock at lock_offset inside it; false when no two looks agreed.
template <class T>
bool copy_guarded(const InputFile& file, uint64_t offset, size_t lock_offset, Copy<T>& to) {
  for (int i = 0; i < kTries; i++) {
    uint32_t before = 0, after = 0;
    if (file.read(offset + lock_offset, &before, 4) != 4) return false;
    if (!copy(file, offset, to)) return false;
    if (file.read(offset + lock_offset, &after, 4) != 4) return false;
    if (before == after && before % 2 == 0) return true;
  }
  return false;
}

// Calls use(offset, slot) for the slots of an area whose first word is not zero. Most are free and many are holes in
// the file, so they are read a block at a time and holes not at all.
template <class T, class Use>
void each_used_slot(const InputFile& file, const Extent& extent, Use use) {
  constexpr uint64_t kBlock = 64u << 10;
  const uint64_t slots = std::min<uint64_t>(extent.size / extent.stride, 1u << 16);
  const uint64_t at_once = std::max<uint64_t>(kBlock / extent.stride, 1);  // a stride is what the file says it is
  std::vector<unsigned char> block(static_cast<size_t>(at_once > 1 ? at_once * extent.stride : sizeof(T)));
  for (uint64_t i = 0; i < slots;) {
    const uint64_t offset = extent.offset + i * extent.stride;
    const uint64_t data = file.skip_hole(offset, extent.offset + slots * extent.stride);
    if (data - offset >= extent.stride) {
      i += (data - offset) / extent.stride;
      continue;
    }
    const uint64_t n = std::min(at_once, slots - i);
    const size_t want = static_cast<size_t>((n - 1) * extent.stride + sizeof(T));
    const size_t got = file.read(offset, block.data(), want);
    for (uint64_t k = 0; k < n && k * extent.stride + sizeof(T) <= got; k++) {
      uint32_t first;
      std::memcpy(&first, &block[static_cast<size_t>(k * extent.stride)], sizeof first);
      if (first == 0) continue;
      Copy<T> slot;
      std::memcpy(slot.bytes, &block[static_cast<size_t>(k * extent.stride)], sizeof(T));
      use(offset + k * extent.stride, slot);
    }
    if (got < want) return;
    i += n;
  }
}

void terminate(FileHeader& h) {
  for (auto [text, size] : {std::pair<char*, size_t>{h.boot_id, sizeof h.boot_id}, {h.host, sizeof h.host},
                            {h.exe, sizeof h.exe}, {h.command, sizeof h.command}, {h.run_id, sizeof h.run_id},
                            {h.nccl_path, sizeof h.nccl_path}, {h.lockstep_version, sizeof h.lockstep_version},
                            {h.stacks_note, sizeof h.stacks_note}})
    text[size - 1] = '\0';
}

Error unusable(const std::string& path, const std::string& why) { return Error{path + ": " + why}; }

Result<FileHeader> read_header(const InputFile& file, const std::string& path) {
  FileHeader header{};
  const size_t got = file.read(0, &header, sizeof header);
  if (got < sizeof kMagic || std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    return unusable(path, got == 0 ? "the file is empty; expected a Lockstep trace"
                                   : "not a Lockstep trace: it does not begin with \"LSTRACE\"");
  if (got >= offsetof(FileHeader, byte_order) + 8 && header.byte_order == __builtin_bswap64(kByteOrderMark))
    return unusable(path, "written on a machine of the other byte order; read it on one like that");
  if (got >= offsetof(FileHeader, header_size) &&
      (header.version_major < kOldestMajor || header.version_major > kVersionMajor))
    return unusable(path, "trace format " + std::to_string(header.version_major) + "." +
                              std::to_string(header.version_minor) + ", but this lockstep reads formats " +
                              std::to_string(kOldestMajor) + " to " + std::to_string(kVersionMajor) +
                              "; use the lockstep that came with the shim that wrote it");
  if (got < sizeof header)
    return unusable(path, "cut off inside its header: " + std::to_string(got) + " bytes, expected at least " +
                              std::to_string(sizeof header) + "; copy the file again");
  if (header.byte_order != kByteOrderMark || header.header_size < sizeof header)
    return unusable(path, "its header is damaged (byte order mark or header size); copy the file again");
  terminate(header);
  return header;
}

Clock read_status(const InputFile& file, TraceFile& out, Copy<Status>& status, bool& there) {
  const Extent extent = detail::extent_of(out.header, kStatusArea, sizeof(Status), file);
  there = extent.size >= sizeof(Status);
  if (!there) {
    out.problems.push_back(out.path + ": cut off before its status block; only the header could be read");
    return {};
  }
  out.status_known = true;
  out.heartbeat_known = copy_guarded(file, extent.offset, offsetof(Status, heartbeat.lock), status) &&
                        status->heartbeat.clock.mono_ns > 0;
  const ClockPair last = out.heartbeat_known && status->heartbeat.clock.stamp > status->second_clock.stamp
                             ? status->heartbeat.clock
                             : status->second_clock;
  const Clock clock(out.header.clock_source, status->first_clock, last);
  if (!clock.known()) out.problems.push_back(out.path + ": its clocks are damaged, so no event has a time");
  if (out.heartbeat_known) {
    out.beats = status->heartbeat.count;
    out.last_beat = {status->heartbeat.clock.mono_ns, status->heartbeat.clock.wall_ns};
    out.cpu_ns = status->heartbeat.cpu_ns;
    out.threads_alive = status->heartbeat.threads;
  }
  const uint32_t exit_kind = status->exit.kind.load(std::memory_order_relaxed);
  if (exit_kind != 0 && exit_kind <= static_cast<uint32_t>(ExitKind::fatal_signal)) {
    out.exit_kind = static_cast<ExitKind>(exit_kind);
    out.exit_code = status->exit.code;
    out.exit_time = {status->exit.mono_ns, status->exit.wall_ns};
  }
  const uint32_t supervisor = status->supervisor.state.load(std::memory_order_relaxed);
  if (supervisor != 0 && supervisor <= static_cast<uint32_t>(SupervisorState::gone)) {
    out.supervisor = static_cast<SupervisorState>(supervisor);
    out.supervisor_code = status->supervisor.code;
    out.supervisor_time = {0, status->supervisor.wall_ns};
    out.peak_rss_bytes = status->supervisor.peak_rss_bytes;
  }
  out.recording = status->recording.load(std::memory_order_relaxed) != 0;
  out.last_call = clock.at(status->last_call_stamp.load(std::memory_order_relaxed));
  out.events = status->ring_next.load(std::memory_order_relaxed);
  out.dropped = status->events_dropped.load(std::memory_order_relaxed);
  out.arena_dropped = status->arena_dropped.load(std::memory_order_relaxed);
  out.comms_dropped = status->comms_dropped.load(std::memory_order_relaxed);
  const uint32_t states = status->states.load(std::memory_order_relaxed);
  if (states <= static_cast<uint32_t>(StatesKnown::failed)) out.states = static_cast<StatesKnown>(states);
  out.driver_asked = clock.at(status->driver_asked.load(std::memory_order_relaxed));
  out.driver_answered = clock.at(status->driver_answered.load(std::memory_order_relaxed));
  out.host_waits = status->host_waits.load(std::memory_order_relaxed);
  out.graph_launches = status->graph_launches.load(std::memory_order_relaxed);
  out.captured_calls = status->captured_calls.load(std::memory_order_relaxed);
  out.digests_dropped = status->digests_dropped.load(std::memory_order_relaxed);
  out.blind = status->blind.load(std::memory_order_relaxed);
  return clock;
}

void add_marks(const Marks& marks, ThreadInfo& thread) {
  if (marks.bits & kHasStep) thread.step = marks.step;
  if (marks.bits & kHasPhase) thread.phase = detail::text_of(marks.phase);
  if (marks.bits & kHasSample) {
    thread.sample = detail::text_of(marks.sample);
    if (thread.sample.empty()) thread.sample = std::to_string(marks.sample_value);
  }
}

// process_marks: the slot whose marks stand for threads that never make any, plus one.
void read_threads(const InputFile& file, uint32_t process_marks, const Clock& clock, TraceFile& out) {
  const Extent extent = detail::extent_of(out.header, kThreadArea, sizeof(ThreadSlot), file);
  if (extent.size == 0) {
    out.problems.push_back(out.path + ": cut off before its threads");
    return;
  }
  const uint64_t slots = std::min<uint64_t>(extent.size / extent.stride, 1u << 16);
  constexpr size_t kLock = offsetof(ThreadSlot, marks.lock);
  Copy<ThreadSlot> latest;
  const bool have_latest = process_marks != 0 && process_marks <= slots &&
                           copy_guarded(file, extent.offset + (process_marks - 1) * extent.stride, kLock, latest);
  static_assert(offsetof(ThreadSlot, tid) == 0);
  each_used_slot<ThreadSlot>(file, extent, [&](uint64_t offset, Copy<ThreadSlot>& slot) {
    const bool whole = copy_guarded(file, offset, kLock, slot);
    ThreadInfo thread;
    thread.tid = slot->tid.load(std::memory_order_relaxed);
    thread.state = static_cast<char>(slot->state.load(std::memory_order_relaxed));
    thread.name = detail::text_of(slot->name);
    thread.cpu_ns = slot->cpu_ns.load(std::memory_order_relaxed);
    const uint64_t open_call = slot->open_call.load(std::memory_order_relaxed);
    if (open_call != 0) thread.open_call = open_call - 1;
    if (const uint64_t open_wait = slot->open_wait.load(std::memory_order_relaxed)) {
      thread.open_wait = open_wait - 1;
      thread.wait_fn = static_cast<uint16_t>(slot->wait_fn);
      thread.wait_object = slot->wait_object;
      thread.wait_since = clock.at(slot->wait_stamp.load(std::memory_order_relaxed));
    }
    if (whole) add_marks(slot->marks.bits == 0 && have_latest ? latest->marks : slot->marks, thread);
    out.threads.push_back(std::move(thread));
  });
}

Call call_of(const CallSummary& summary, uint32_t comm, const Clock& clock) {
  Call call;
  call.event = summary.event.load(std::memory_order_relaxed) - 1;
  call.fn = summary.fn;
  call.tid = summary.tid;
  call.comm = comm;
  call.peer = summary.peer;
  call.count = summary.count;
  call.seq = summary.flags & kGivenBack ? UINT64_MAX : summary.seq;
  call.redop = summary.redop;
  call.dtype = summary.dtype;
  call.flags = summary.flags;
  call.group = summary.group;
  call.stack = summary.native_stack;
  call.called = clock.at(summary.stamp);
  const uint64_t returned = summary.returned.load(std::memory_order_relaxed);
  call.returned = returned != 0;
  call.return_time = clock.at(returned);
  return call;
}

// Two copies, one after the other: a summary counts when it did not change in between.
void add_recent(const CommSlot& first, const CommSlot& second, const Clock& clock, CommInfo& comm) {
  for (uint32_t i = 0; i < kRecentCalls; i++) {
    const CallSummary& a = first.recent[i];
    const CallSummary& b = second.recent[i];
    const uint64_t event = b.event.load(std::memory_order_relaxed);
    if (event == 0 || (event & kBusy) || a.event.load(std::memory_order_relaxed) != event) continue;
    constexpr size_t kBody = offsetof(CallSummary, returned) - sizeof(uint64_t);
    if (std::memcmp(reinterpret_cast<const char*>(&a) + 8, reinterpret_cast<const char*>(&b) + 8, kBody) != 0) continue;
    comm.recent.push_back(call_of(b, comm.serial, clock));
  }
  std::sort(comm.recent.begin(), comm.recent.end(), [](const Call& x, const Call& y) { return x.event < y.event; });
}

// What format 2 added. In an older file the same bytes are zero, which would say "none started".
void add_since_2(const CommSlot& slot, const Clock& clock, CommInfo& comm) {
  const auto known = [](uint64_t n) {
    return n == UINT64_MAX ? std::optional<uint64_t>() : std::optional<uint64_t>(n);
  };
  comm.p2p_started = known(slot.p2p_started.load(std::memory_order_relaxed));
  comm.p2p_completed = known(slot.p2p_completed.load(std::memory_order_relaxed));
  const uint64_t unstarted = slot.coll_unstarted.load(std::memory_order_relaxed);
  if (unstarted) comm.coll_unstarted = unstarted - 1;
  comm.moved = clock.at(slot.moved_stamp.load(std::memory_order_relaxed));
  comm.last_stream = slot.last_stream.load(std::memory_order_relaxed);
  comm.captured = slot.captured.load(std::memory_order_relaxed);
  comm.unwatched = slot.unwatched.load(std::memory_order_relaxed);
  comm.blind = slot.blind.load(std::memory_order_relaxed);
  comm.config = slot.config;
  comm.config.net_name[sizeof comm.config.net_name - 1] = '\0';
}

CommInfo comm_of(const CommSlot& slot, const Clock& clock) {
  const auto known = [](uint64_t n) {
    return n == UINT64_MAX ? std::optional<uint64_t>() : std::optional<uint64_t>(n);
  };
  CommInfo comm;
  comm.serial = slot.serial.load(std::memory_order_relaxed);
  const uint32_t state = slot.state.load(std::memory_order_relaxed);
  comm.state = state <= static_cast<uint32_t>(CommState::revoked) ? static_cast<CommState>(state) : CommState::free;
  comm.id = slot.id;
  comm.parent_id = slot.parent_id;
  comm.parent_serial = slot.parent_serial;
  comm.generation = slot.generation;
  comm.rank = slot.rank;
  comm.nranks = slot.nranks;
  comm.device = slot.device;
  comm.creator_tid = slot.creator_tid;
  comm.handle = slot.handle;
  comm.created = clock.at(slot.created_stamp);
  comm.ready = clock.at(slot.ready_stamp);
  comm.ended = clock.at(slot.ended_stamp);
  comm.color = slot.color;
  comm.key = slot.key;
  comm.split_count = slot.split_count;
  comm.life_seq = slot.life_seq;
  comm.name = detail::text_of(slot.name);
  comm.coll_called = slot.coll_called.load(std::memory_order_relaxed);
  comm.coll_returned = slot.coll_returned.load(std::memory_order_relaxed);
  comm.p2p_called = slot.p2p_called.load(std::memory_order_relaxed);
  comm.p2p_returned = slot.p2p_returned.load(std::memory_order_relaxed);
  comm.coll_started = known(slot.coll_started.load(std::memory_order_relaxed));
  comm.coll_completed = known(slot.coll_completed.load(std::memory_order_relaxed));
  return comm;
}

void read_comms(const InputFile& file, const Clock& clock, TraceFile& out) {
  const Extent extent = detail::extent_of(out.header, kCommArea, sizeof(CommSlot), file);
  if (extent.size == 0) {
    out.problems.push_back(out.path + ": cut off before its communicators");
    return;
  }
  static_assert(offsetof(CommSlot, serial) == 0);
  each_used_slot<CommSlot>(file, extent, [&](uint64_t offset, const Copy<CommSlot>& first) {
    Copy<CommSlot> second;
    if (!copy(file, offset, second) || second->serial.load(std::memory_order_relaxed) == 0) return;
    CommInfo comm = comm_of(*second, clock);
    if (out.header.version_major >= 2) add_since_2(*second, clock, comm);
    add_recent(*first, *second, clock, comm);
    out.comms.push_back(std::move(comm));
  });
  std::sort(out.comms.begin(), out.comms.end(),
            [](const CommInfo& a, const CommInfo& b) { return a.serial < b.serial; });
}

}  // namespace

std::optional<std::string> TraceFile::environment(std::string_view name) const {
  for (const std::string& text : texts) {
    if (!text.starts_with("environment")) continue;
    const std::string line = "\n" + std::string(name) + "=";
    const size_t at = text.find(line);
    if (at == std::string::npos) continue;
    const size_t start = at + line.size(), end = text.find('\n', start);
    return text.substr(start, end == std::string::npos ? end : end - start);
  }
  return {};
}

namespace {

Result<TraceFile> read(const std::string& path, bool events) {
  const InputFile file(path);
  if (!file.is_open()) return unusable(path, "cannot be read: " + file.why_not());
  const Result<FileHeader> header = read_header(file, path);
  if (!header) return Error{header.error()};

  TraceFile out;
  out.path = path;
  out.header = *header;
  Copy<Status> status;
  bool there = false;
  const Clock clock = read_status(file, out, status, there);
  if (!there) return out;
  read_threads(file, status->process_marks.load(std::memory_order_relaxed), clock, out);
  read_comms(file, clock, out);
  if (!events) return out;
  const Extent arena = detail::extent_of(out.header, kArenaArea, 0, file);
  if (arena.size == 0) out.problems.push_back(path + ": cut off before its arena, so it has no stacks and no modules");
  detail::read_arena(file, arena, status->arena_next.load(std::memory_order_relaxed), out);
  const Extent ring = detail::extent_of(out.header, kRingArea, sizeof(Record), file);
  if (ring.size == 0) out.problems.push_back(path + ": cut off before its events");
  detail::read_ring(file, ring, clock, *status, out);
  return out;
}

}  // namespace

Result<TraceFile> read_trace(const std::string& path) { return read(path, true); }
Result<TraceFile> read_head(const std::string& path) { return read(path, false); }

}  // namespace lockstep::trace
