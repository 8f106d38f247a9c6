// SPDX-License-Identifier: MIT
#include "tools/explain/explain.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "interpose/abi/functions.h"
#include "tools/explain/explain_parts.h"
#include "tools/job/lookup.h"
#include "tools/job/runs.h"

namespace lockstep {

using trace::Call;

std::string duration_text(int64_t ns) {
  const int64_t ms = ns / 1'000'000;
  if (ms < 1000) return fmt::format("{} ms", ms);
  if (ms < 10'000) return fmt::format("{:.1f} s", static_cast<double>(ms) / 1000);
  if (ms < 120'000) return fmt::format("{} s", ms / 1000);
  const int64_t minutes = ms / 60'000;
  if (minutes < 120) return fmt::format("{} min {} s", minutes, ms / 1000 % 60);
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

std::string clock_text(int64_t wall_ns) {
  if (wall_ns <= 0) return "-";
  const time_t seconds = static_cast<time_t>(wall_ns / 1'000'000'000);
  struct tm parts;
  localtime_r(&seconds, &parts);
  return fmt::format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string signature_text(const Signature& s) {
  std::string text = fmt::format("{}({} x {}", s.op, s.count, s.dtype);
  if (s.redop) text += ", " + *s.redop;
  if (s.root) text += fmt::format(", root {}", *s.root);
  return text + ")";
}

std::string ranks_text(const Run& run, const std::vector<size_t>& ranks) {
  std::vector<int> numbers;
  std::string unnamed;
  for (const size_t rank : ranks) {
    if (run.ranks[rank].number >= 0) {
      numbers.push_back(run.ranks[rank].number);
    } else {
      unnamed += (unnamed.empty() ? "" : ", ") + rank_name(run, rank);
    }
  }
  std::string text = numbers.empty() ? "" : (numbers.size() == 1 ? "rank " : "ranks ") + number_ranges(numbers);
  if (!unnamed.empty()) text += (text.empty() ? "" : ", ") + unnamed;
  return text.empty() ? "nobody" : text;
}

namespace {

void note_failed_init(const Evidence& evidence, Finding& finding) {
  if (finding.kind != Kind::init_incomplete || !finding.comm) return;
  for (const size_t rank : finding.culprits) {
    const Member* member = member_of(evidence.table.comms[*finding.comm], rank);
    if (!member || member->info->state != trace::CommState::failed) continue;
    for (const Call& call : evidence.file(rank).calls)
      if (call.new_comm == member->info->serial && has_failed(call))
        finding.detail = fmt::format("its init call failed with \"{}\"", abi::result_name(call.result));
  }
}

// Culprits that cannot go on because somebody has stopped them.
void note_stopped(const Evidence& evidence, Finding& finding) {
  const auto is_stopped = [&](size_t rank) { return evidence.stopped(rank) != Stopped::no; };
  if (finding.severity != Severity::error || finding.culprits.empty() ||
      !std::all_of(finding.culprits.begin(), finding.culprits.end(), is_stopped))
    return;
  const Stopped how = evidence.stopped(finding.culprits.front());
  finding.summary += fmt::format("; {} {}", finding.culprits.size() == 1 ? "it is" : "each is", stopped_in_words(how));
  finding.next =
      how == Stopped::by_debugger
          ? "let the debugger continue it, or detach; the others wait as long as it holds the process"
          : "find out who stopped it: kill -STOP, Ctrl-Z, or a background process that read from or wrote to "
            "its terminal; kill -CONT lets it go on";
}

}  // namespace

void explain(const Evidence& evidence, Symbolizer& symbolizer, Diagnosis& diagnosis) {
  for (Finding& finding : diagnosis.findings) {
    if (finding.kind != Kind::idle && finding.kind != Kind::missing_trace) add_stacks(evidence, symbolizer, finding);
    note_failed_init(evidence, finding);
    finding.summary = summary_of(evidence, finding);
    finding.next = next_of(finding);
    const bool lacks_traces = finding.kind == Kind::missing_trace || !finding.traceless.empty();
    if (lacks_traces && is_made_up(evidence.run.id))
      finding.next +=
          "; ranks that are started one by one need one folder (lockstep run --dir) and one LOCKSTEP_RUN_ID";
    note_stopped(evidence, finding);
  }
}

std::string verdict_sentence(const Evidence& evidence, const Diagnosis& diagnosis) {
  if (!diagnosis.findings.empty() &&
      (diagnosis.findings.front().severity == Severity::error || diagnosis.verdict == Verdict::healthy))
    return fmt::format("{}: {}", verdict_name(diagnosis.verdict), diagnosis.findings.front().summary);
  if (diagnosis.verdict == Verdict::healthy) {
    size_t ended = 0;
    for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) ended += evidence.life(rank).end != End::none;
    const size_t all = evidence.run.ranks.size();
    return fmt::format("healthy: {} ranks made the same calls on {} communicators; {}", all,
                       evidence.table.comms.size(),
                       ended == all ? "all have ended"
                       : ended == 0 ? "all are running"
                                    : fmt::format("{} have ended", ended));
  }
  return fmt::format("unknown: {}",
                     diagnosis.remarks.empty() ? "the evidence does not suffice" : diagnosis.remarks.front());
}

}  // namespace lockstep
