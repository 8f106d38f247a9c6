// SPDX-License-Identifier: MIT
//
// A trace for people. Whatever a program wrote into it (names, marks, paths) is shown by printable(): nothing in it may
// move the cursor of a terminal.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "interpose/abi/functions.h"
#include "interpose/abi/host_functions.h"
#include "tools/explain/explain.h"
#include "tools/printable.h"
#include "tools/show/trace.h"

namespace lockstep {

const char* show_state(trace::CommState state) {
  static const char* const names[] = {"free",      "initialising", "live",   "finalized",
                                      "destroyed", "aborted",      "failed", "revoked"};
  const size_t index = static_cast<size_t>(state);
  return index < std::size(names) ? names[index] : "unknown";
}

const char* show_liveness(trace::Liveness liveness) {
  switch (liveness) {
    case trace::Liveness::alive:
      return "alive";
    case trace::Liveness::dead:
      return "dead";
    case trace::Liveness::elsewhere:
      return "of another machine";
  }
  return "";
}

std::string show_function(uint16_t fn) {
  const abi::FunctionInfo* info = abi::find_function(fn);
  return info ? info->name : fmt::format("function {}", fn);
}

size_t first_shown(const ShowOptions& options, size_t count) {
  return options.all || count <= options.calls ? 0 : count - options.calls;
}

std::string show_host_function(uint16_t fn) {
  const abi::HostFunction* info = abi::find_host_function(fn);
  return info ? info->name : fmt::format("host function {}", fn);
}

namespace {

using trace::Call;
using trace::CommInfo;
using trace::TraceFile;

std::string call_words(const Call& call) {
  std::string text = show_function(call.fn);
  const auto fn = static_cast<abi::Fn>(call.fn);
  if (call.comm) text += fmt::format(" comm {}", call.comm);
  if (call.seq != UINT64_MAX) text += fmt::format(" #{}", call.seq);
  if (abi::has_role(fn, abi::ArgRole::count)) text += fmt::format(" {} x {}", call.count, abi::dtype_name(call.dtype));
  if (abi::has_role(fn, abi::ArgRole::bytes)) text += fmt::format(" {} bytes", call.count);
  if (abi::has_role(fn, abi::ArgRole::redop)) text += fmt::format(" {}", abi::redop_name(call.redop));
  if (abi::has_role(fn, abi::ArgRole::root)) text += fmt::format(" root {}", call.peer);
  if (abi::has_role(fn, abi::ArgRole::peer)) text += fmt::format(" peer {}", call.peer);
  if (call.group) text += fmt::format(" group {}", call.group);
  if (call.flags & trace::kInPlace) text += " in-place";
  if (call.flags & trace::kCaptured) text += " captured";
  if (call.step) text += fmt::format(" step {}", *call.step);
  if (!call.returned) return text + "  NOT RETURNED";
  text += fmt::format("  {:.1f} us", static_cast<double>(call.return_time.mono_ns - call.called.mono_ns) / 1000);
  return call.result ? text + fmt::format("  result {} ({})", call.result, abi::result_name(call.result)) : text;
}

std::string host_call_words(const trace::HostCall& call) {
  std::string text = show_host_function(call.fn);
  if (call.object) text += fmt::format(" {:#x}", call.object);
  if (call.other) text += fmt::format(", {:#x}", call.other);
  if (call.bytes) text += fmt::format(" {} bytes", call.bytes);
  text += fmt::format(" after {} NCCL operations of its thread", call.comm_calls);
  if (call.kind == abi::HostKind::order) return text;
  if (!call.returned) return text + "  NOT RETURNED";
  text += fmt::format("  {:.1f} us", static_cast<double>(call.return_time.mono_ns - call.called.mono_ns) / 1000);
  return call.result ? text + fmt::format("  result {}", call.result) : text;
}

std::string states_words(const TraceFile& file) {
  switch (file.states) {
    case trace::StatesKnown::watched: {
      const int64_t waits = file.driver_asked.mono_ns - file.driver_answered.mono_ns;
      return waits > 1000000000
                 ? fmt::format("watched; the driver has not answered for {:.1f} s", static_cast<double>(waits) / 1e9)
                 : "watched";
    }
    case trace::StatesKnown::switched_off:
      return "not watched: switched off";
    case trace::StatesKnown::failed:
      return "not watched: the driver lacks a function that is needed";
    case trace::StatesKnown::no_driver:
      break;
  }
  return "not watched: no CUDA driver in the process";
}

std::string blind_words(uint32_t bits) {
  std::string text;
  for (const auto& [bit, words] : {std::pair<uint32_t, const char*>{trace::kBlindDeviceApi, "device API"},
                                   {trace::kBlindWindow, "windows"},
                                   {trace::kBlindGraph, "graph replays"}})
    if (bits & bit) text += std::string(text.empty() ? "" : ", ") + words;
  return text;
}

std::string shown_state(char state) { return state ? printable(std::string(1, state)) : "-"; }

std::string known_words(const std::optional<uint64_t>& number) { return number ? std::to_string(*number) : "?"; }

std::string comm_words(const CommInfo& c) {
  std::string text;
  if (c.parent_serial)
    text += fmt::format("; child {} of {}{}", c.split_count, c.parent_serial,
                        c.color == INT32_MIN ? "" : fmt::format(" with colour {}", c.color));
  if (c.coll_started || c.coll_completed)
    text += fmt::format("; collectives {} started, {} completed", known_words(c.coll_started),
                        known_words(c.coll_completed));
  if (c.captured) text += fmt::format("; {} captured", c.captured);
  if (c.config.size && c.config.blocking == 0) text += "; nonblocking";
  if (c.blind) text += "; blind to " + blind_words(c.blind);
  return text;
}

void print_header(const TraceFile& file, const Life& life) {
  const trace::FileHeader& h = file.header;
  fmt::print("{}\n", printable(file.path));
  fmt::print("  format        {}.{}, written by lockstep {}\n", h.version_major, h.version_minor,
             printable(h.lockstep_version));
  fmt::print("  process       pid {} on {}, {}; {}\n", h.pid, printable(h.host), show_liveness(trace::look_alive(file)),
             life.end == End::none ? "no end on record" : end_in_words(life));
  fmt::print("  command       {}\n", printable(h.command));
  fmt::print("  rank          {} of {} by the environment; run \"{}\", restart {}\n", h.env_rank, h.env_world_size,
             printable(h.run_id), h.restart_count);
  fmt::print("  NCCL          {} ({})\n", h.nccl_version, printable(h.nccl_path));
  fmt::print("  opened        {}, last call {}, last heartbeat {} ({} beats)\n", clock_text(h.opened_wall_ns),
             clock_text(file.last_call.wall_ns), clock_text(file.last_beat.wall_ns), file.beats);
  fmt::print("  events        {} in all, {} on record calls, {} dropped, {} overwritten, {} torn\n", file.events,
             file.calls.size(), file.dropped, file.overwritten, file.torn);
  if (file.arena_dropped || file.comms_dropped)
    fmt::print("  no room       for {} stacks, modules or snapshots, and {} communicators\n", file.arena_dropped,
               file.comms_dropped);
  if (file.peak_rss_bytes) fmt::print("  peak memory   {} MiB\n", file.peak_rss_bytes >> 20);
  fmt::print("  states        {}\n", states_words(file));
  if (file.host_waits || file.graph_launches)
    fmt::print("  host          {} waits, {} graph launches\n", file.host_waits, file.graph_launches);
  if (file.blind) fmt::print("  blind         to {}\n", blind_words(file.blind));
  if (!file.recording) fmt::print("  recording stopped after a failure inside the shim\n");
  for (const std::string& problem : file.problems) fmt::print("  left out      {}\n", printable(problem));
}

void print_comms(const TraceFile& file) {
  fmt::print("\ncommunicators\n");
  for (const CommInfo& c : file.comms)
    fmt::print(
        "  {:>3}  {:016x}  {:<16} rank {} of {}, {}; collectives {} called, {} returned; p2p {} called, {} "
        "returned{}\n",
        c.serial, c.id, c.name.empty() ? "-" : printable(c.name), c.rank, c.nranks, show_state(c.state), c.coll_called,
        c.coll_returned, c.p2p_called, c.p2p_returned, comm_words(c));
}

void print_threads(const TraceFile& file) {
  fmt::print("\nthreads\n");
  for (const trace::ThreadInfo& t : file.threads) {
    std::string text = fmt::format("  {:>7}  {:<16} {}", t.tid, printable(t.name), shown_state(t.state));
    if (t.open_call) text += fmt::format("  in call {}", *t.open_call);
    if (t.open_wait)
      text += fmt::format("  in {} of {:#x} since {}", show_host_function(t.wait_fn), t.wait_object,
                          clock_text(t.wait_since.wall_ns));
    if (t.step) text += fmt::format("  step {}", *t.step);
    if (!t.phase.empty()) text += fmt::format("  phase {}", printable(t.phase));
    if (!t.sample.empty()) text += fmt::format("  sample {}", printable(t.sample));
    fmt::print("{}\n", text);
  }
}

void print_calls(const TraceFile& file, const ShowOptions& options) {
  const size_t first = first_shown(options, file.calls.size());
  fmt::print(
      "\ncalls{}\n",
      first ? fmt::format(" (the last {} of {}; --all shows all)", file.calls.size() - first, file.calls.size()) : "");
  for (size_t i = first; i < file.calls.size(); i++) {
    const Call& call = file.calls[i];
    fmt::print("  {:>8}  {}  tid {}  {}\n", call.event, clock_text(call.called.wall_ns), call.tid, call_words(call));
  }
}

void print_host_calls(const TraceFile& file, const ShowOptions& options) {
  if (file.host_calls.empty()) return;
  fmt::print("\nhost waits, events and graphs\n");
  for (size_t i = first_shown(options, file.host_calls.size()); i < file.host_calls.size(); i++) {
    const trace::HostCall& call = file.host_calls[i];
    fmt::print("  {:>8}  {}  tid {}  {}\n", call.event, clock_text(call.called.wall_ns), call.tid,
               host_call_words(call));
  }
}

void print_digests(const TraceFile& file, const ShowOptions& options) {
  if (file.digests.empty()) return;
  fmt::print("\ndigests\n");
  for (size_t i = first_shown(options, file.digests.size()); i < file.digests.size(); i++) {
    const trace::Digest& d = file.digests[i];
    fmt::print("  {:>8}  {} comm {}{}  {} of {} bytes: {:016x}\n", d.call, show_function(d.fn), d.comm,
               d.seq == UINT64_MAX ? "" : fmt::format(" #{}", d.seq), d.output ? "output" : "input", d.bytes, d.value);
  }
}

void print_marks(const TraceFile& file, const ShowOptions& options) {
  if (file.marks.empty()) return;
  static const char* const kinds[] = {"?", "step", "phase", "sample", "note", "name", "blind from here:"};
  fmt::print("\nmarks\n");
  for (size_t i = first_shown(options, file.marks.size()); i < file.marks.size(); i++) {
    const trace::MarkEvent& mark = file.marks[i];
    fmt::print("  {:>8}  {}  tid {}  {} {}\n", mark.event, clock_text(mark.when.wall_ns), mark.tid,
               kinds[mark.kind < std::size(kinds) ? mark.kind : 0],
               mark.text.empty() ? std::to_string(mark.value) : printable(mark.text));
  }
}

void print_snapshots(const TraceFile& file, Symbolizer& symbolizer) {
  for (const trace::Snapshot& shot : file.snapshots) {
    fmt::print("\nsnapshot {} of thread {} ({}), {}, state {}{}\n", shot.round, shot.tid, printable(shot.thread_name),
               clock_text(shot.when.wall_ns), shown_state(shot.state),
               shot.wait_channel.empty() ? "" : ", in " + printable(shot.wait_channel));
    for (const Frame& frame : symbolizer.name_all(file, shot.pcs, true))
      fmt::print("    {}\n", printable(frame_text(frame)));
  }
}

void print_modules(const TraceFile& file) {
  fmt::print("\nmodules\n");
  for (const trace::Module& m : file.modules)
    fmt::print("  {:#x}-{:#x}  bias {:#x}  {}  {}\n", m.start, m.end, m.bias,
               m.build_id.empty() ? "-" : printable(m.build_id), printable(m.path));
}

}  // namespace

void show_trace_as_text(const TraceFile& file, const Life& life, const ShowOptions& options, Symbolizer& symbolizer) {
  print_header(file, life);
  print_comms(file);
  print_threads(file);
  print_calls(file, options);
  print_host_calls(file, options);
  print_digests(file, options);
  print_marks(file, options);
  print_snapshots(file, symbolizer);
  if (options.modules) print_modules(file);
}

}  // namespace lockstep
