// SPDX-License-Identifier: MIT
//
// How the job was set up and used, whether or not it hangs: warnings, but for ranks that share a device and failed for
// it. Each is a look at values that should be equal on all ranks, or different on all.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "interpose/abi/functions.h"
#include "tools/explain/explain.h"
#include "tools/job/lookup.h"
#include "tools/judge/rules.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::CommState;

Finding warning(Kind kind) {
  Finding finding;
  finding.kind = kind;
  finding.severity = Severity::warning;
  finding.confidence = Confidence::possible;
  return finding;
}

// --- one device, several ranks

std::optional<Finding> shared_device(const Evidence& evidence, size_t index) {
  std::map<std::tuple<std::string, std::string, int>, std::vector<size_t>> by_device;
  bool failed = false;
  for (const Member& member : evidence.table.comms[index].members) {
    failed = failed || member.info->state == CommState::failed;
    if (member.info->device < 0) continue;
    const std::string visible = member.file->environment("CUDA_VISIBLE_DEVICES").value_or("");
    by_device[{member.file->header.host, visible, member.info->device}].push_back(member.rank);
  }
  if (!failed) return std::nullopt;
  for (const auto& [device, ranks] : by_device) {
    if (ranks.size() < 2) continue;
    Finding finding;
    finding.kind = Kind::duplicate_device;
    finding.comm = index;
    finding.op = "CommInitRank";
    finding.victims = ranks;
    finding.confidence = Confidence::likely;
    finding.doubts.push_back(
        "devices are compared by their number on the host; which of the ranks is on the wrong one "
        "is not on record");
    finding.detail = fmt::format("{} are all on device {} of host {}", ranks_text(evidence.run, ranks),
                                 std::get<2>(device), std::get<0>(device));
    finding.since = evidence.table.comms[index].members.front().info->created;
    return finding;
  }
  return std::nullopt;
}

// --- environment

// What may differ from rank to rank for good reasons.
bool is_local(const std::string& name) {
  for (const char* prefix : {"NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO", "NCCL_GRAPH",
                             "NCCL_HOSTID", "NCCL_COMM_ID", "NCCL_IB_GID", "NCCL_OOB"})
    if (name.rfind(prefix, 0) == 0) return true;
  return name.rfind("NCCL_", 0) != 0;
}

std::map<std::string, std::string> settings_of(const trace::TraceFile& file) {
  std::map<std::string, std::string> settings;
  if (file.header.nccl_version) settings["NCCL version"] = std::to_string(file.header.nccl_version);
  for (const std::string& text : file.texts) {
    if (text.rfind("environment", 0) != 0) continue;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const size_t equal = line.find('=');
      if (equal != std::string::npos && !is_local(line.substr(0, equal)))
        settings[line.substr(0, equal)] = line.substr(equal + 1);
    }
  }
  return settings;
}

std::optional<Finding> different_settings(const Evidence& evidence) {
  std::map<std::string, std::map<std::string, std::vector<size_t>>> values;  // name -> value -> ranks
  std::vector<size_t> told;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) {
    const trace::TraceFile& file = evidence.file(rank);
    if (file.comms.empty() || file.texts.empty()) continue;
    told.push_back(rank);
    for (const auto& [name, value] : settings_of(file)) values[name][value].push_back(rank);
  }
  for (auto& [name, by_value] : values) {
    size_t set = 0;
    for (const auto& [value, ranks] : by_value) set += ranks.size();
    if (by_value.size() == 1 && (set == told.size() || name == "NCCL version")) continue;
    Finding finding = warning(Kind::environment_differs);
    for (const auto& [value, ranks] : by_value) {
      finding.detail += fmt::format("{}{}={} on {}", finding.detail.empty() ? "" : ", ", name, value,
                                    ranks_text(evidence.run, ranks));
      finding.victims.insert(finding.victims.end(), ranks.begin(), ranks.end());
    }
    if (set < told.size()) finding.detail += ", not set on the others";
    finding.doubts.push_back("settings may differ for a reason");
    return finding;
  }
  return std::nullopt;
}

// --- several worlds

std::optional<Finding> several_worlds(const Evidence& evidence) {
  const Table& table = evidence.table;
  const int world = evidence.run.world_size;
  if (table.comms.size() < 2 || world < 2) return std::nullopt;
  std::set<size_t> seen;
  for (const Comm& comm : table.comms) {
    if (comm.nranks != table.comms[0].nranks || comm.nranks >= world || comm.parent_id) return std::nullopt;
    for (const Member& member : comm.members)
      if (!seen.insert(member.rank).second) return std::nullopt;  // a rank in two of them: groups, not worlds
  }
  if (seen.size() != evidence.run.ranks.size()) return std::nullopt;
  Finding finding = warning(Kind::group_size);
  finding.severity = Severity::note;
  finding.comm = 0;
  finding.detail = fmt::format("{} communicators of {} ranks each, and none that spans the {} ranks of the job",
                               table.comms.size(), table.comms[0].nranks, world);
  finding.doubts.push_back("it may be meant so");
  return finding;
}

// --- two threads at once

std::optional<Finding> two_threads(const Evidence& evidence, size_t index) {
  for (const Member& member : evidence.table.comms[index].members) {
    std::vector<const Call*> calls = member.collectives;
    calls.insert(calls.end(), member.p2p.begin(), member.p2p.end());
    std::sort(calls.begin(), calls.end(), [](const Call* a, const Call* b) { return a->event < b->event; });
    const Call* latest = nullptr;  // of those so far, the one that came back last
    const auto end_of = [](const Call& call) { return call.returned ? call.return_time.mono_ns : INT64_MAX; };
    for (const Call* call : calls) {
      if (latest && latest->tid != call->tid && end_of(*latest) > call->called.mono_ns &&
          latest->called.mono_ns <= call->called.mono_ns && latest->return_time.mono_ns != call->called.mono_ns) {
        Finding finding = warning(Kind::concurrent_use);
        finding.confidence = Confidence::certain;
        finding.comm = index;
        finding.op = op_name(*call);
        if (is_collective(*call)) finding.seq = call->seq;
        finding.victims = {member.rank};
        finding.since = call->called;
        finding.detail = fmt::format("threads {} and {} were inside {} and {} at the same time", latest->tid, call->tid,
                                     op_name(*latest), op_name(*call));
        return finding;
      }
      if (!latest || end_of(*call) > end_of(*latest)) latest = call;
    }
  }
  return std::nullopt;
}

// --- one sample, several ranks

std::optional<Finding> same_samples(const Evidence& evidence, size_t index) {
  std::map<std::pair<uint64_t, std::string>, std::vector<size_t>> seen;  // step and sample -> ranks
  for (const Member& member : evidence.table.comms[index].members) {
    const Rank& who = evidence.run.ranks[member.rank];
    uint64_t step = 0;
    bool any_step = false;
    for (const trace::MarkEvent& mark : member.file->marks) {
      if (!is_its_thread(who, mark.tid)) continue;
      if (mark.kind == trace::kMarkStep) step = mark.value, any_step = true;
      if (mark.kind != trace::kMarkSample || !any_step) continue;
      std::vector<size_t>& ranks = seen[{step, mark.text.empty() ? std::to_string(mark.value) : mark.text}];
      if (ranks.empty() || ranks.back() != member.rank) ranks.push_back(member.rank);
    }
  }
  for (const auto& [what, ranks] : seen) {
    if (ranks.size() < 2) continue;
    Finding finding = warning(Kind::duplicate_data);
    finding.comm = index;
    finding.step = what.first;
    finding.sample = what.second;
    finding.victims = ranks;
    finding.detail = fmt::format("{} marked the same sample \"{}\" in step {}", ranks_text(evidence.run, ranks),
                                 what.second, what.first);
    finding.doubts.push_back("that these ranks should see different data is told by the communicator alone");
    return finding;
  }
  return std::nullopt;
}

bool is_data_parallel(const Table& table, const Comm& comm) {
  if (comm.name.rfind("dp", 0) == 0 || comm.name.rfind("data", 0) == 0) return true;
  return table.comms.size() == 1 && comm.nranks > 1;
}

}  // namespace

std::vector<Finding> find_shared_devices(const Evidence& evidence) {
  std::vector<Finding> findings;
  for (size_t index = 0; index < evidence.table.comms.size(); index++)
    if (std::optional<Finding> shared = shared_device(evidence, index)) findings.push_back(std::move(*shared));
  return findings;
}

std::vector<Finding> find_setup(const Evidence& evidence) {
  std::vector<Finding> findings;
  const auto take = [&](std::optional<Finding> finding) {
    if (finding) findings.push_back(std::move(*finding));
  };
  take(different_settings(evidence));
  take(several_worlds(evidence));
  for (size_t index = 0; index < evidence.table.comms.size(); index++) {
    take(two_threads(evidence, index));
    if (is_data_parallel(evidence.table, evidence.table.comms[index])) take(same_samples(evidence, index));
  }
  return findings;
}

}  // namespace lockstep
