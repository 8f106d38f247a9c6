// SPDX-License-Identifier: MIT

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "interpose/abi/functions.h"
#include "tools/explain/explain.h"
#include "tools/job/match.h"
#include "tools/show/trace.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;
using trace::Call;
using trace::CommInfo;
using trace::TraceFile;

ordered_json call_json(const TraceFile& file, const Call& call, Symbolizer& symbolizer) {
  ordered_json out = {
      {"event", call.event}, {"function", show_function(call.fn)}, {"tid", call.tid}, {"comm", call.comm}};
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
                      {"function", show_host_function(call.fn)},
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

void add_process(const TraceFile& file, ordered_json& out) {
  const trace::FileHeader& h = file.header;
  out["process"] = {{"pid", h.pid},
                    {"host", h.host},
                    {"command", h.command},
                    {"liveness", show_liveness(trace::look_alive(file))},
                    {"env_rank", h.env_rank},
                    {"env_world_size", h.env_world_size},
                    {"run", h.run_id},
                    {"restart", h.restart_count},
                    {"nccl_version", h.nccl_version},
                    {"hang_ms", h.hang_ms},
                    {"supervisor_pid", h.supervisor_pid}};
}

void add_status(const TraceFile& file, ordered_json& out) {
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
                   {"arena_dropped", file.arena_dropped},
                   {"comms_dropped", file.comms_dropped},
                   {"overwritten", file.overwritten},
                   {"torn", file.torn},
                   {"states", static_cast<int>(file.states)},
                   {"host_waits", file.host_waits},
                   {"graph_launches", file.graph_launches},
                   {"blind", file.blind}};
}

void add_comms(const TraceFile& file, ordered_json& out) {
  out["communicators"] = ordered_json::array();
  for (const CommInfo& c : file.comms)
    out["communicators"].push_back({{"serial", c.serial},
                                    {"id", fmt::format("{:016x}", c.id)},
                                    {"name", c.name},
                                    {"state", show_state(c.state)},
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
}

void add_threads(const TraceFile& file, ordered_json& out) {
  out["threads"] = ordered_json::array();
  for (const trace::ThreadInfo& t : file.threads)
    out["threads"].push_back(
        {{"tid", t.tid},
         {"name", t.name},
         {"step", t.step ? ordered_json(*t.step) : ordered_json(nullptr)},
         {"phase", t.phase},
         {"sample", t.sample},
         {"open_wait", maybe(t.open_wait)},
         {"wait_function", t.open_wait ? ordered_json(show_host_function(t.wait_fn)) : ordered_json(nullptr)},
         {"wait_object", t.wait_object}});
}

void add_calls(const TraceFile& file, const ShowOptions& options, Symbolizer& symbolizer, ordered_json& out) {
  out["calls"] = ordered_json::array();
  for (size_t i = first_shown(options, file.calls.size()); i < file.calls.size(); i++)
    out["calls"].push_back(call_json(file, file.calls[i], symbolizer));
  out["host_calls"] = ordered_json::array();
  for (size_t i = first_shown(options, file.host_calls.size()); i < file.host_calls.size(); i++)
    out["host_calls"].push_back(host_call_json(file, file.host_calls[i], symbolizer));
}

void add_digests(const TraceFile& file, ordered_json& out) {
  out["digests"] = ordered_json::array();
  for (const trace::Digest& d : file.digests)
    out["digests"].push_back({{"call", d.call},
                              {"comm", d.comm},
                              {"seq", d.seq == UINT64_MAX ? ordered_json(nullptr) : ordered_json(d.seq)},
                              {"output", d.output},
                              {"bytes", d.bytes},
                              {"digest", fmt::format("{:016x}", d.value)}});
}

void add_marks(const TraceFile& file, const ShowOptions& options, ordered_json& out) {
  out["marks"] = ordered_json::array();
  for (size_t i = first_shown(options, file.marks.size()); i < file.marks.size(); i++)
    out["marks"].push_back({{"event", file.marks[i].event},
                            {"tid", file.marks[i].tid},
                            {"kind", file.marks[i].kind},
                            {"value", file.marks[i].value},
                            {"text", file.marks[i].text}});
}

void add_snapshots(const TraceFile& file, const ShowOptions& options, Symbolizer& symbolizer, ordered_json& out) {
  out["snapshots"] = ordered_json::array();
  for (const trace::Snapshot& shot : file.snapshots) out["snapshots"].push_back(snapshot_json(file, shot, symbolizer));
  if (options.modules)
    for (const trace::Module& m : file.modules)
      out["modules"].push_back(
          {{"path", m.path}, {"build_id", m.build_id}, {"start", m.start}, {"end", m.end}, {"bias", m.bias}});
}

}  // namespace

std::string show_trace_as_json(const TraceFile& file, const ShowOptions& options, Symbolizer& symbolizer) {
  ordered_json out;
  out["lockstep"] = LOCKSTEP_VERSION;
  out["file"] = file.path;
  out["format"] = fmt::format("{}.{}", file.header.version_major, file.header.version_minor);
  add_process(file, out);
  add_status(file, out);
  add_comms(file, out);
  add_threads(file, out);
  add_calls(file, options, symbolizer, out);
  add_digests(file, out);
  add_marks(file, options, out);
  add_snapshots(file, options, symbolizer, out);
  out["problems"] = file.problems;
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
