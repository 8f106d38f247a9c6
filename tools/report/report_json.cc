// SPDX-License-Identifier: MIT
//
// `diagnose --json`, described by docs/diagnose-schema.json. Keys keep their order, so that diffs of two reports are
// small.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/explain/explain.h"
#include "tools/explain/symbols.h"
#include "tools/report/report.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

// Ranks without a number stand for themselves in summaries only.
ordered_json numbers(const Run& run, const std::vector<size_t>& ranks, const std::vector<int>& more = {}) {
  std::set<int> sorted(more.begin(), more.end());
  for (const size_t rank : ranks)
    if (run.ranks[rank].number >= 0) sorted.insert(run.ranks[rank].number);
  return ordered_json(sorted);
}

ordered_json in_order(const Run& run, const std::vector<size_t>& ranks) {
  ordered_json list = ordered_json::array();
  for (const size_t rank : ranks) list.push_back(run.ranks[rank].number);
  return list;
}

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json text_or_null(const std::string& text) { return text.empty() ? ordered_json(nullptr) : ordered_json(text); }

ordered_json signature_json(const std::optional<Signature>& signature) {
  if (!signature) return nullptr;
  return {{"op", signature->op},
          {"count", signature->count},
          {"dtype", signature->dtype},
          {"redop", or_null(signature->redop)},
          {"root", or_null(signature->root)}};
}

ordered_json comm_json(const Run& run, const Comm& comm) {
  std::vector<size_t> ranks;
  for (const Member& member : comm.members) ranks.push_back(member.rank);
  return {{"id", comm_id_text(comm)}, {"name", comm.name}, {"nranks", comm.nranks}, {"ranks", numbers(run, ranks)}};
}

std::string key_of(const Run& run, size_t rank) {
  const int number = run.ranks[rank].number;
  return number >= 0 ? std::to_string(number) : rank_name(run, rank);
}

ordered_json stacks_json(const Run& run, const Finding& finding) {
  ordered_json stacks = ordered_json::object();
  for (const auto& [rank, stack] : finding.stacks) {
    ordered_json frames = ordered_json::array();
    for (const Frame& frame : stack.frames) frames.push_back(frame_json(frame));
    stacks[key_of(run, rank)] =
        ordered_json::array({{{"thread", stack.thread}, {"origin", stack.origin}, {"frames", frames}}});
  }
  return stacks;
}

ordered_json finding_json(const Evidence& evidence, const Finding& finding) {
  const Run& run = evidence.run;
  ordered_json out;
  out["kind"] = kind_name(finding.kind);
  out["severity"] = severity_name(finding.severity);
  out["culprits"] = numbers(run, finding.culprits, finding.traceless);
  out["victims"] = numbers(run, finding.victims);
  out["confidence"] = confidence_name(finding.confidence);
  out["doubts"] = finding.doubts;
  out["comm"] = finding.comm ? comm_json(run, evidence.table.comms[*finding.comm]) : ordered_json(nullptr);
  out["seq"] = or_null(finding.seq);
  const std::optional<Message>& message = finding.message;
  const bool has_peer = message && message->peer && run.ranks[*message->peer].number >= 0;
  out["peer"] = has_peer ? ordered_json(run.ranks[*message->peer].number) : ordered_json(nullptr);
  out["direction"] = message ? ordered_json(message->sends ? "send" : "receive") : ordered_json(nullptr);
  out["edge_seq"] = message ? ordered_json(message->number) : ordered_json(nullptr);
  out["op"] = text_or_null(finding.op);
  out["expected"] = signature_json(finding.expected);
  out["actual"] = ordered_json::object();
  for (const auto& [rank, signature] : finding.actual) out["actual"][key_of(run, rank)] = signature_json(signature);
  out["last_agreed"] = finding.agreed_seq
                           ? ordered_json{{"seq", *finding.agreed_seq}, {"op", text_or_null(finding.agreed_op)}}
                           : ordered_json(nullptr);
  out["step"] = or_null(finding.step);
  out["sample"] = text_or_null(finding.sample);
  out["cycle"] = finding.cycle.empty() ? ordered_json(nullptr) : in_order(run, finding.cycle);
  out["pending_seconds"] = static_cast<double>(finding.pending_ns / 1'000'000) / 1000;
  out["stacks"] = stacks_json(run, finding);
  out["summary"] = finding.summary;
  out["next"] = finding.next;
  return out;
}

ordered_json steps_json(const Run& run) {
  std::optional<uint64_t> low, high;
  for (const Rank& rank : run.ranks) {
    std::optional<uint64_t> own;
    for (const trace::ThreadInfo& thread : run.processes[rank.process].file.threads)
      if (thread.step) own = std::max(own.value_or(0), *thread.step);
    if (!own) continue;
    low = std::min(low.value_or(*own), *own);
    high = std::max(high.value_or(*own), *own);
  }
  if (!low) return nullptr;
  return {{"min", *low}, {"max", *high}};
}

ordered_json job_json(const Job& job, const Run& run) {
  std::set<std::string> hosts;
  uint64_t dropped = 0;
  for (const Process& process : run.processes) {
    hosts.insert(process.file.header.host);
    dropped += process.file.dropped;
  }
  const size_t numbered = static_cast<size_t>(
      std::count_if(run.ranks.begin(), run.ranks.end(), [](const Rank& rank) { return rank.number >= 0; }));
  ordered_json others = ordered_json::array();
  for (const Run& other : job.runs)
    if (&other != &run)
      others.push_back({{"id", other.id}, {"restart", other.restart}, {"traces", other.processes.size()}});
  return {{"ranks", run.world_size > 0 ? run.world_size : static_cast<int>(numbered)},
          {"traces", run.processes.size()},
          {"missing_ranks", run.missing},
          {"hosts", hosts},
          {"dropped_events", dropped},
          {"steps", steps_json(run)},
          {"run", run.id},
          {"restart", run.restart},
          {"other_runs", others}};
}

}  // namespace

std::string report_json(const Job& job, const Evidence& evidence, const Diagnosis& diagnosis) {
  ordered_json out;
  out["lockstep"] = LOCKSTEP_VERSION;
  out["status"] = verdict_name(diagnosis.verdict);
  out["job"] = job_json(job, evidence.run);
  out["findings"] = ordered_json::array();
  for (const Finding& finding : diagnosis.findings) out["findings"].push_back(finding_json(evidence, finding));
  ordered_json remarks = diagnosis.remarks;
  for (const std::string& note : evidence.run.notes) remarks.push_back(note);
  out["remarks"] = remarks;
  out["left_out"] = what_was_left_out(job, evidence.run);
  // Names and paths come from foreign programs and need not be UTF-8.
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string report_jsonl(const Job& job, const Evidence& evidence, const Diagnosis& diagnosis) {
  ordered_json head;
  head["lockstep"] = LOCKSTEP_VERSION;
  head["folder"] = job.folder;
  head["run"] = evidence.run.id;
  head["status"] = verdict_name(diagnosis.verdict);
  std::string lines;
  const auto add = [&](const ordered_json& line) {
    lines += line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  };
  for (const Finding& finding : diagnosis.findings) {
    ordered_json line = head;
    line.update(finding_json(evidence, finding));
    add(line);
  }
  if (diagnosis.findings.empty()) {
    head["kind"] = nullptr;
    head["summary"] = verdict_sentence(evidence, diagnosis);
    add(head);
  }
  return lines;
}

}  // namespace lockstep
