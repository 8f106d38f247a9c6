// SPDX-License-Identifier: MIT
//
// See hang.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/hang.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "interpose/abi/functions.h"
#include "interpose/abi/host_functions.h"
#include "interpose/shim/clock.h"
#include "interpose/shim/comms.h"
#include "interpose/shim/proc.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/report.h"
#include "interpose/shim/snapshot.h"
#include "interpose/shim/text.h"

namespace lockstep::shim {
namespace {

constexpr unsigned kMostRounds = 64;        // snapshots of one process: an arena is not for films
constexpr unsigned kTicksForSupervisor = 4;

struct Watch {  // the helper thread's own
  uint32_t epoch;
  uint64_t reported_event;    // open call last asked about, plus one
  uint64_t reported_wait;     // host wait, the same
  uint64_t quiet_stamp;       // last_call_stamp of the silence last asked about
  int64_t served_wall_ns;     // of the request last served
  int64_t snapshot_wall_ns;   // when the last snapshot was taken
  unsigned rounds;
  unsigned waited;            // ticks the supervisor has had for the request now waiting
  uint32_t snapshots_before;
};
Watch watch;

struct Request {
  int64_t wall_ns = 0;
  char why = 0;
};

struct OpenCall {
  uint64_t event = 0;  // plus one; 0 = none
  uint64_t stamp = 0;
  const trace::ThreadSlot* slot = nullptr;
};

const char kIntroduction[] = "lockstep-snapshot 1 ";

void request_path(TextBuilder& out, const char* suffix) {
  const char* path = recorder.trace.path;
  const char* slash = strrchr(path, '/');
  char folder[sizeof recorder.trace.path];
  trace::put_text(folder, sizeof folder, path, slash ? static_cast<size_t>(slash - path) : 0);
  out << folder << "/" << trace::kSnapshotRequestFile << suffix;
}

Request read_request() {
  Text<640> path;
  request_path(path, "");
  char line[512];
  Request request;
  if (read_file(path.text(), line, sizeof line) <= 0) return request;
  if (strncmp(line, kIntroduction, sizeof kIntroduction - 1) != 0) return request;
  const char* at = line + sizeof kIntroduction - 1;
  uint64_t wall;
  if (!parse_number(at, wall) || *at != ' ') return request;
  request.wall_ns = static_cast<int64_t>(wall);
  request.why = at[1] == 'q' ? 'q' : 'r';
  return request;
}

int64_t milliseconds_since(uint64_t stamp) {
  const trace::Status& status = *recorder.trace.status;
  const trace::ClockPair& first = status.first_clock;
  const trace::ClockPair& last = status.heartbeat.clock;  // written by this very thread a moment ago
  if (last.stamp <= stamp) return 0;
  const double ns_per_tick = last.stamp > first.stamp ? static_cast<double>(last.mono_ns - first.mono_ns) /
                                                            static_cast<double>(last.stamp - first.stamp)
                                                      : 0;
  return static_cast<int64_t>(static_cast<double>(last.stamp - stamp) * ns_per_tick / 1e6);
}

// Of all threads, the one that has been in it for longest.
OpenCall oldest(std::atomic<uint64_t> trace::ThreadSlot::* open, std::atomic<uint64_t> trace::ThreadSlot::* since) {
  OpenCall oldest;
  for (unsigned i = 0; i < trace::kThreadSlots; i++) {
    const trace::ThreadSlot& slot = recorder.trace.threads[i];
    if (slot.tid.load(std::memory_order_relaxed) == 0) continue;
    const uint64_t event = (slot.*open).load(std::memory_order_acquire);
    const uint64_t stamp = (slot.*since).load(std::memory_order_relaxed);
    if (event && (!oldest.event || stamp < oldest.stamp)) oldest = {event, stamp, &slot};
  }
  return oldest;
}

void put_comm_name(TextBuilder& out, uint32_t serial) {
  const Comm* comm = find_serial(serial);
  if (!comm) return;
  out << " on ";
  if (comm->slot->name[0])
    out << comm->slot->name;
  else
    (out << "comm-").hex(comm->slot->id >> 32, 8);
}

// "AllReduce #17 on comm-1a2b3c4d", from the ring record of the call; empty when the ring has wrapped over it.
void describe(TextBuilder& out, uint64_t event) {
  const trace::Status& status = *recorder.trace.status;
  const uint64_t slot = trace::slot_of(event - 1, status.ring_slots.load(std::memory_order_relaxed));
  const trace::Record& record = recorder.trace.ring[slot];
  if (slot >= status.ring_allocated.load(std::memory_order_acquire)) return;
  if (record.commit.load(std::memory_order_acquire) != event) return;
  const abi::FunctionInfo* info = abi::find_function(record.fn);
  if (!info) return;
  out << info->name;
  if (info->kind == abi::FunctionKind::collective && record.begin.seq != UINT64_MAX) out << " #" << record.begin.seq;
  if (info->kind == abi::FunctionKind::p2p)
    out << (record.fn == static_cast<uint16_t>(abi::Fn::Send) ? " to " : " from ") << record.begin.peer;
  put_comm_name(out, record.begin.comm);
}

bool takes_stream(const abi::HostFunction& function) { return strstr(function.symbol, "StreamSynchronize") != nullptr; }

// The newest operation on this stream, as far as one communicator's last operation was there.
void put_last_operation(TextBuilder& out, uint64_t stream) {
  const trace::CommSlot* found = nullptr;
  uint64_t newest = 0;
  const trace::CallSummary* last = nullptr;
  for (unsigned i = 0; i < trace::kCommSlots; i++) {
    const trace::CommSlot& slot = recorder.trace.comms[i];
    const uint64_t count = slot.recent_next.load(std::memory_order_relaxed);
    if (!slot.serial.load(std::memory_order_acquire) || !count) continue;
    if (slot.last_stream.load(std::memory_order_relaxed) != stream) continue;
    const trace::CallSummary& call = slot.recent[(count - 1) % trace::kRecentCalls];
    const uint64_t event = call.event.load(std::memory_order_acquire);
    if ((event & trace::kBusy) || event <= newest) continue;
    newest = event;
    found = &slot;
    last = &call;
  }
  const abi::FunctionInfo* info = found ? abi::find_function(last->fn) : nullptr;
  if (!info) return;
  out << " behind " << info->name;
  if (info->kind == abi::FunctionKind::collective && last->seq != UINT64_MAX) out << " #" << last->seq;
  put_comm_name(out, found->serial.load(std::memory_order_relaxed));
}

// "cudaStreamSynchronize behind AllReduce #17 on comm-1a2b3c4d".
void describe_wait(TextBuilder& out, const trace::ThreadSlot& slot) {
  const abi::HostFunction* function = abi::find_host_function(static_cast<uint16_t>(slot.wait_fn));
  out << (function ? function->name : "a host wait");
  if (function && takes_stream(*function)) put_last_operation(out, slot.wait_object);
}

void put_rank(TextBuilder& out) {
  const trace::FileHeader& header = *recorder.trace.header;
  if (header.env_rank >= 0) out << "rank " << header.env_rank << " (";
  out << header.host << ":" << header.pid;
  if (header.env_rank >= 0) out << ")";
}

void put_seconds(TextBuilder& out, int64_t ms) {
  out << ms / 1000;
  if (ms < 10000) out << "." << ms / 100 % 10;
  out << " s";
}

void make_request(char why, const char* words) {
  Text<640> final_name, own_name;
  request_path(final_name, "");
  Text<32> suffix;
  suffix << "." << recorder.trace.header->pid << ".tmp";
  request_path(own_name, suffix.text());
  Text<480> line;
  line << kIntroduction << nanoseconds(CLOCK_REALTIME) << " " << why << " ";
  put_rank(line);
  line << " " << words << "\n";
  const int fd = open(own_name.text(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return;
  const bool written = write(fd, line.text(), line.size()) == static_cast<ssize_t>(line.size());
  close(fd);
  if (!written || rename(own_name.text(), final_name.text()) != 0) unlink(own_name.text());
}

// A request made after our own hang began covers us, whoever made it.
bool covered(const Request& request, int64_t hung_for_ms) {
  return request.wall_ns > 0 && request.wall_ns >= nanoseconds(CLOCK_REALTIME) - hung_for_ms * 1000000;
}

void say_and_ask(const char* words, int64_t ms) {
  Text<500> line;
  put_rank(line);
  line << " has been in " << words << " for ";
  put_seconds(line, ms);
  report(line.text());
  if (!covered(read_request(), ms)) make_request('r', words);
}

void look_at_open_call(const OpenCall& call) {
  if (call.event == watch.reported_event) return;
  const int64_t ms = milliseconds_since(call.stamp);
  if (ms < recorder.config.hang_ms) return;
  watch.reported_event = call.event;
  Text<300> words;
  describe(words, call.event);
  if (words.size() == 0) words << "a call";
  say_and_ask(words.text(), ms);
}

// A hang in a stream shows in whoever waits for the stream.
void look_at_open_wait(const OpenCall& wait) {
  if (wait.event == watch.reported_wait || living_comms.load(std::memory_order_relaxed) == 0) return;
  const int64_t ms = milliseconds_since(wait.stamp);
  if (ms < recorder.config.hang_ms) return;
  watch.reported_wait = wait.event;
  Text<300> words;
  describe_wait(words, *wait.slot);
  say_and_ask(words.text(), ms);
}

void look_for_silence() {
  const uint64_t last = recorder.trace.status->last_call_stamp.load(std::memory_order_relaxed);
  if (last == watch.quiet_stamp || living_comms.load(std::memory_order_relaxed) == 0) return;
  const int64_t ms = milliseconds_since(last);
  if (ms < recorder.config.hang_ms) return;
  watch.quiet_stamp = last;
  if (!covered(read_request(), ms)) make_request('q', "is quiet");
}

bool supervised() {
  const trace::Status& status = *recorder.trace.status;
  return recorder.config.supervisor > 0 &&
         status.supervisor.state.load(std::memory_order_acquire) ==
             static_cast<uint32_t>(trace::SupervisorState::watching) &&
         kill(recorder.config.supervisor, 0) == 0;
}

void serve(const Request& request) {
  if (request.wall_ns <= watch.served_wall_ns || request.wall_ns <= watch.snapshot_wall_ns) return;
  if (request.wall_ns <= recorder.trace.header->opened_wall_ns) return;  // of an earlier run in the same folder
  if (watch.rounds >= kMostRounds) return;
  const uint32_t taken = recorder.trace.status->snapshots_taken.load(std::memory_order_relaxed);
  if (supervised()) {
    if (watch.waited == 0) watch.snapshots_before = taken;
    if (taken == watch.snapshots_before && watch.waited++ < kTicksForSupervisor) return;
  }
  watch.waited = 0;
  if (!supervised() || taken == watch.snapshots_before)
    take_snapshot(recorder.trace.status->snapshots_taken.fetch_add(1, std::memory_order_relaxed) + 1, request.why);
  watch.rounds++;
  watch.served_wall_ns = request.wall_ns;
  watch.snapshot_wall_ns = nanoseconds(CLOCK_REALTIME);
}

}  // namespace

void watch_for_hangs() {
  if (recorder.config.hang_ms == 0) return;
  const uint32_t epoch = recorder.epoch.load(std::memory_order_relaxed);
  if (watch.epoch != epoch) {
    watch = {};
    watch.epoch = epoch;
  }
  const OpenCall call = oldest(&trace::ThreadSlot::open_call, &trace::ThreadSlot::open_stamp);
  const OpenCall wait = oldest(&trace::ThreadSlot::open_wait, &trace::ThreadSlot::wait_stamp);
  if (wait.event) look_at_open_wait(wait);
  if (call.event)
    look_at_open_call(call);
  else
    look_for_silence();
  serve(read_request());
}

}  // namespace lockstep::shim
