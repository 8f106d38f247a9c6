// SPDX-License-Identifier: MIT
//
// `lockstep show FILE`: what is in one trace, for people and as JSON. Judges nothing. (Tensor dumps: show_dump.cc.)

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "interpose/abi/functions.h"
#include "interpose/abi/host_functions.h"
#include "interpose/trace/reader.h"
#include "tools/command.h"
#include "tools/explain.h"
#include "tools/life.h"
#include "tools/match.h"
#include "tools/show_dump.h"
#include "tools/symbols.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;
using trace::Call;
using trace::CommInfo;
using trace::TraceFile;

struct ShowOptions {
  std::string file, debug_dir;
  size_t calls = 20;
  bool all = false, modules = false, json = false;
};

const char* state_name(trace::CommState state) {
  static const char* const names[] = {"free",      "initialising", "live",   "finalized",
                                      "destroyed", "aborted",      "failed", "revoked"};
  const size_t index = static_cast<size_t>(state);
  return index < std::size(names) ? names[index] : "unknown";
}

const char* liveness_name(trace::Liveness liveness) {
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

std::string function_name(uint16_t fn) {
  const abi::FunctionInfo* info = abi::find_function(fn);
  return info ? info->name : fmt::format("function {}", fn);
}

size_t first_shown(const ShowOptions& options, size_t count) {
  return options.all || count <= options.calls ? 0 : count - options.calls;
}

std::string call_words(const Call& call) {
  std::string text = function_name(call.fn);
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

std::string host_name(uint16_t fn) {
  const abi::HostFunction* info = abi::find_host_function(fn);
  return info ? info->name : fmt::format("host function {}", fn);
}

std::string host_call_words(const trace::HostCall& call) {
  std::string text = host_name(call.fn);
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

// --- text
// ----------------------------------------------------------------------------------------------------------------------

void print_header(const TraceFile& file, const Life& life) {
  const trace::FileHeader& h = file.header;
  fmt::print("{}\n", file.path);
  fmt::print("  format        {}.{}, written by lockstep {}\n", h.version_major, h.version_minor, h.lockstep_version);
  fmt::print("  process       pid {} on {}, {}; {}\n", h.pid, h.host, liveness_name(trace::look_alive(file)),
             life.end == End::none ? "no end on record" : end_in_words(life));
  fmt::print("  command       {}\n", h.command);
  fmt::print("  rank          {} of {} by the environment; run \"{}\", restart {}\n", h.env_rank, h.env_world_size,
             h.run_id, h.restart_count);
  fmt::print("  NCCL          {} ({})\n", h.nccl_version, h.nccl_path);
  fmt::print("  opened        {}, last call {}, last heartbeat {} ({} beats)\n", clock_text(h.opened_wall_ns),
             clock_text(file.last_call.wall_ns), clock_text(file.last_beat.wall_ns), file.beats);
  fmt::print("  events        {} in all, {} on record calls, {} dropped, {} overwritten, {} torn\n", file.events,
             file.calls.size(), file.dropped, file.overwritten, file.torn);
  if (file.peak_rss_bytes) fmt::print("  peak memory   {} MiB\n", file.peak_rss_bytes >> 20);
  fmt::print("  states        {}\n", states_words(file));
  if (file.host_waits || file.graph_launches)
    fmt::print("  host          {} waits, {} graph launches\n", file.host_waits, file.graph_launches);
  if (file.blind) fmt::print("  blind         to {}\n", blind_words(file.blind));
  if (!file.recording) fmt::print("  recording stopped after a failure inside the shim\n");
  for (const std::string& problem : file.problems) fmt::print("  left out      {}\n", problem);
}

void print_comms(const TraceFile& file) {
  fmt::print("\ncommunicators\n");
  for (const CommInfo& c : file.comms)
    fmt::print(
        "  {:>3}  {:016x}  {:<16} rank {} of {}, {}; collectives {} called, {} returned; p2p {} called, {} "
        "returned{}\n",
        c.serial, c.id, c.name.empty() ? "-" : c.name, c.rank, c.nranks, state_name(c.state), c.coll_called,
        c.coll_returned, c.p2p_called, c.p2p_returned, comm_words(c));
}

void print_threads(const TraceFile& file) {
  fmt::print("\nthreads\n");
  for (const trace::ThreadInfo& t : file.threads) {
    std::string text = fmt::format("  {:>7}  {:<16} {}", t.tid, t.name, t.state ? t.state : '-');
    if (t.open_call) text += fmt::format("  in call {}", *t.open_call);
    if (t.open_wait)
      text += fmt::format("  in {} of {:#x} since {}", host_name(t.wait_fn), t.wait_object,
                          clock_text(t.wait_since.wall_ns));
    if (t.step) text += fmt::format("  step {}", *t.step);
    if (!t.phase.empty()) text += fmt::format("  phase {}", t.phase);
    if (!t.sample.empty()) text += fmt::format("  sample {}", t.sample);
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
    fmt::print("  {:>8}  {} comm {}{}  {} of {} bytes: {:016x}\n", d.call, function_name(d.fn), d.comm,
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
               mark.text.empty() ? std::to_string(mark.value) : mark.text);
  }
}

void print_snapshots(const TraceFile& file, Symbolizer& symbolizer) {
  for (const trace::Snapshot& shot : file.snapshots) {
    fmt::print("\nsnapshot {} of thread {} ({}), {}, state {}{}\n", shot.round, shot.tid, shot.thread_name,
               clock_text(shot.when.wall_ns), shot.state ? shot.state : '-',
               shot.wait_channel.empty() ? "" : ", in " + shot.wait_channel);
    for (const Frame& frame : symbolizer.name_all(file, shot.pcs, true)) fmt::print("    {}\n", frame_text(frame));
  }
}

void print_modules(const TraceFile& file) {
  fmt::print("\nmodules\n");
  for (const trace::Module& m : file.modules)
    fmt::print("  {:#x}-{:#x}  bias {:#x}  {}  {}\n", m.start, m.end, m.bias, m.build_id.empty() ? "-" : m.build_id,
               m.path);
}

// --- JSON
// ----------------------------------------------------------------------------------------------------------------------

ordered_json call_json(const TraceFile& file, const Call& call, Symbolizer& symbolizer) {
  ordered_json out = {
      {"event", call.event}, {"function", function_name(call.fn)}, {"tid", call.tid}, {"comm", call.comm}};
  out["seq"] = call.seq == UINT64_MAX ? ordered_json(nullptr) : ordered_json(call.seq);
  out["count"] = call.count;
  out["dtype"] = abi::dtype_name(call.dtype);
  out["redop"] = abi::has_role(static_cast<abi::Fn>(call.fn), abi::ArgRole::redop)
                     ? ordered_json(abi::redop_name(call.redop))
                     : ordered_json(nullptr);
  out["peer"] = call.peer < 0 ? ordered_json(nullptr) : ordered_json(call.peer);
  out["group"] = call.group;
  out["flags"] = call.flags;
  out["step"] = call.step ? ordered_json(*call.step) : ordered_json(nullptr);
  out["called_wall_ns"] = call.called.wall_ns;
  out["returned"] = call.returned;
  out["result"] = call.returned ? ordered_json(call.result) : ordered_json(nullptr);
  out["duration_ns"] =
      call.returned ? ordered_json(call.return_time.mono_ns - call.called.mono_ns) : ordered_json(nullptr);
  out["stack"] = ordered_json::array();
  for (const Frame& frame : symbolizer.name_all(file, file.stack(call.stack), false))
    out["stack"].push_back(frame_json(frame));
  return out;
}

ordered_json maybe(const std::optional<uint64_t>& number) {
  return number ? ordered_json(*number) : ordered_json(nullptr);
}

ordered_json host_call_json(const TraceFile& file, const trace::HostCall& call, Symbolizer& symbolizer) {
  ordered_json out = {{"event", call.event},
                      {"function", host_name(call.fn)},
                      {"tid", call.tid},
                      {"object", call.object},
                      {"other", call.other},
                      {"bytes", call.bytes},
                      {"comm_calls", call.comm_calls},
                      {"step", maybe(call.step)},
                      {"called_wall_ns", call.called.wall_ns},
                      {"returned", call.returned},
                      {"result", call.returned ? ordered_json(call.result) : ordered_json(nullptr)}};
  out["stack"] = ordered_json::array();
  for (const Frame& frame : symbolizer.name_all(file, file.stack(call.stack), false))
    out["stack"].push_back(frame_json(frame));
  return out;
}

ordered_json snapshot_json(const TraceFile& file, const trace::Snapshot& shot, Symbolizer& symbolizer) {
  ordered_json frames = ordered_json::array();
  for (const Frame& frame : symbolizer.name_all(file, shot.pcs, true)) frames.push_back(frame_json(frame));
  return {{"round", shot.round},
          {"tid", shot.tid},
          {"thread", shot.thread_name},
          {"state", std::string(1, shot.state ? shot.state : '-')},
          {"wait_channel", shot.wait_channel},
          {"wall_ns", shot.when.wall_ns},
          {"frames", frames}};
}

std::string as_json(const TraceFile& file, const ShowOptions& options, Symbolizer& symbolizer) {
  const trace::FileHeader& h = file.header;
  ordered_json out;
  out["lockstep"] = LOCKSTEP_VERSION;
  out["file"] = file.path;
  out["format"] = fmt::format("{}.{}", h.version_major, h.version_minor);
  out["process"] = {{"pid", h.pid},
                    {"host", h.host},
                    {"command", h.command},
                    {"liveness", liveness_name(trace::look_alive(file))},
                    {"env_rank", h.env_rank},
                    {"env_world_size", h.env_world_size},
                    {"run", h.run_id},
                    {"restart", h.restart_count},
                    {"nccl_version", h.nccl_version},
                    {"hang_ms", h.hang_ms},
                    {"supervisor_pid", h.supervisor_pid}};
  out["status"] = {{"beats", file.beats},
                   {"last_beat_wall_ns", file.last_beat.wall_ns},
                   {"last_call_wall_ns", file.last_call.wall_ns},
                   {"exit_kind", static_cast<int>(file.exit_kind)},
                   {"exit_code", file.exit_code},
                   {"supervisor", static_cast<int>(file.supervisor)},
                   {"supervisor_code", file.supervisor_code},
                   {"peak_rss_bytes", file.peak_rss_bytes},
                   {"recording", file.recording},
                   {"events", file.events},
                   {"dropped", file.dropped},
                   {"overwritten", file.overwritten},
                   {"torn", file.torn},
                   {"states", static_cast<int>(file.states)},
                   {"host_waits", file.host_waits},
                   {"graph_launches", file.graph_launches},
                   {"blind", file.blind}};
  out["communicators"] = ordered_json::array();
  for (const CommInfo& c : file.comms)
    out["communicators"].push_back({{"serial", c.serial},
                                    {"id", fmt::format("{:016x}", c.id)},
                                    {"name", c.name},
                                    {"state", state_name(c.state)},
                                    {"rank", c.rank},
                                    {"nranks", c.nranks},
                                    {"parent", fmt::format("{:016x}", c.parent_id)},
                                    {"coll_called", c.coll_called},
                                    {"coll_returned", c.coll_returned},
                                    {"p2p_called", c.p2p_called},
                                    {"p2p_returned", c.p2p_returned},
                                    {"parent_serial", c.parent_serial},
                                    {"color", c.color == INT32_MIN ? ordered_json(nullptr) : ordered_json(c.color)},
                                    {"coll_started", maybe(c.coll_started)},
                                    {"coll_completed", maybe(c.coll_completed)},
                                    {"p2p_started", maybe(c.p2p_started)},
                                    {"p2p_completed", maybe(c.p2p_completed)},
                                    {"last_stream", c.last_stream},
                                    {"captured", c.captured},
                                    {"blind", c.blind}});
  out["threads"] = ordered_json::array();
  for (const trace::ThreadInfo& t : file.threads)
    out["threads"].push_back(
        {{"tid", t.tid},
         {"name", t.name},
         {"step", t.step ? ordered_json(*t.step) : ordered_json(nullptr)},
         {"phase", t.phase},
         {"sample", t.sample},
         {"open_wait", maybe(t.open_wait)},
         {"wait_function", t.open_wait ? ordered_json(host_name(t.wait_fn)) : ordered_json(nullptr)},
         {"wait_object", t.wait_object}});
  out["calls"] = ordered_json::array();
  for (size_t i = first_shown(options, file.calls.size()); i < file.calls.size(); i++)
    out["calls"].push_back(call_json(file, file.calls[i], symbolizer));
  out["host_calls"] = ordered_json::array();
  for (size_t i = first_shown(options, file.host_calls.size()); i < file.host_calls.size(); i++)
    out["host_calls"].push_back(host_call_json(file, file.host_calls[i], symbolizer));
  out["digests"] = ordered_json::array();
  for (const trace::Digest& d : file.digests)
    out["digests"].push_back({{"call", d.call},
                              {"comm", d.comm},
                              {"seq", d.seq == UINT64_MAX ? ordered_json(nullptr) : ordered_json(d.seq)},
                              {"output", d.output},
                              {"bytes", d.bytes},
                              {"digest", fmt::format("{:016x}", d.value)}});
  out["marks"] = ordered_json::array();
  for (size_t i = first_shown(options, file.marks.size()); i < file.marks.size(); i++)
    out["marks"].push_back({{"event", file.marks[i].event},
                            {"tid", file.marks[i].tid},
                            {"kind", file.marks[i].kind},
                            {"value", file.marks[i].value},
                            {"text", file.marks[i].text}});
  out["snapshots"] = ordered_json::array();
  for (const trace::Snapshot& shot : file.snapshots) out["snapshots"].push_back(snapshot_json(file, shot, symbolizer));
  if (options.modules)
    for (const trace::Module& m : file.modules)
      out["modules"].push_back(
          {{"path", m.path}, {"build_id", m.build_id}, {"start", m.start}, {"end", m.end}, {"bias", m.bias}});
  out["problems"] = file.problems;
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

int show(const ShowOptions& options) {
  if (is_tensor_file(options.file)) return show_tensor_file(options.file, options.json);
  Result<TraceFile> file = trace::read_trace(options.file);
  if (!file) {
    fmt::print(stderr, "lockstep show: {}\n", file.error());
    return 2;
  }
  Symbolizer symbolizer(options.debug_dir);
  if (options.json) {
    const std::string text = as_json(*file, options, symbolizer);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  Run alone;
  alone.processes.push_back({*file, trace::look_alive(*file), {}});
  print_header(*file, lives_of(alone).front());
  print_comms(*file);
  print_threads(*file);
  print_calls(*file, options);
  print_host_calls(*file, options);
  print_digests(*file, options);
  print_marks(*file, options);
  print_snapshots(*file, symbolizer);
  if (options.modules) print_modules(*file);
  return 0;
}

}  // namespace

void setup_show(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* command = app.add_subcommand("show", "Print what is in a trace file or a tensor dump");
  command->add_option("FILE", options->file, "A trace (*.lstrace), or tensors (*.safetensors)")->required();
  command->add_option("--calls", options->calls, "So many of the last calls and marks");
  command->add_flag("--all", options->all, "All calls and marks");
  command->add_flag("--modules", options->modules, "The module map, too");
  command->add_flag("--json", options->json, "Print JSON");
  add_debug_dir(*command, options->debug_dir);
  command->footer(
      "Example:\n  lockstep show lockstep-traces/20260101-120000-4711/a.4712.8813.lstrace --calls 50\n"
      "  lockstep show dumps/step000003/rank00000.safetensors");
  command->callback([options, &line] { line.exit_status = show(*options); });
}

}  // namespace lockstep
