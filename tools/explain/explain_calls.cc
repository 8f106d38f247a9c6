// SPDX-License-Identifier: MIT
//
// Sentences about calls that differ: collectives of one row, and the two ends of a message.

#include <fmt/format.h>

#include <algorithm>

#include "tools/explain/explain.h"
#include "tools/explain/explain_parts.h"
#include "tools/job/lookup.h"

namespace lockstep {

bool calls_differ(const Finding& finding) {
  return finding.kind == Kind::op_mismatch || finding.kind == Kind::count_mismatch ||
         finding.kind == Kind::dtype_mismatch || finding.kind == Kind::redop_mismatch ||
         finding.kind == Kind::root_mismatch;
}

namespace {

const char* field_of(Kind kind) {
  switch (kind) {
    case Kind::count_mismatch:
      return "another number of elements";
    case Kind::dtype_mismatch:
      return "another data type";
    case Kind::redop_mismatch:
      return "another reduction";
    case Kind::root_mismatch:
      return "another root";
    default:
      return "another operation";
  }
}

std::string odd_calls(const Evidence& evidence, const Finding& finding) {
  // Group the odd ranks by what they called; a tie lists both sides.
  std::vector<std::pair<std::string, std::vector<size_t>>> groups;
  for (const auto& [rank, signature] : finding.actual) {
    const std::string text = signature ? signature_text(*signature) : "nothing";
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == text; });
    if (same == groups.end()) {
      groups.push_back({text, {rank}});
    } else {
      same->second.push_back(rank);
    }
  }
  std::string text;
  for (const auto& [call, ranks] : groups)
    text += fmt::format("{}{} called {}", text.empty() ? "" : ", ", ranks_text(evidence.run, ranks), call);
  return text;
}

// Those who made the call that was expected. Others are held up by it, too.
std::vector<size_t> who_agreed(const Evidence& evidence, const Finding& finding) {
  std::vector<size_t> ranks;
  for (const size_t rank : finding.victims) {
    const Member* member = member_of(evidence.table.comms[*finding.comm], rank);
    if (!member) continue;
    const trace::Call* call = member->call_at(*finding.seq);
    const bool passed_zero = finding.expected && finding.expected->count == 0;  // such calls take no number
    if (passed_zero || !finding.expected || (call && signature_of(*call) == *finding.expected)) ranks.push_back(rank);
  }
  return ranks;
}

// What comes of it.
std::string hang_text(const Finding& finding) {
  if (!finding.begun) return "; its turn never came: the job is stuck in front of it";
  if (!finding.hangs) return "";
  return fmt::format("; the job hangs{} for {}",
                     finding.stuck_seq ? fmt::format(" since #{},", *finding.stuck_seq) : "",
                     duration_text(finding.pending_ns));
}

}  // namespace

std::string mismatch_summary(const Evidence& evidence, const Finding& finding) {
  const std::string& comm = evidence.table.comms[*finding.comm].name;
  std::string text;
  if (finding.culprits.empty()) {
    text = fmt::format("the calls #{} on {} differ: {}", *finding.seq, comm, odd_calls(evidence, finding));
  } else {
    text = fmt::format("{} made collective #{} on {} with {}: {} where {} {}", who(evidence.run, finding.culprits),
                       *finding.seq, comm, field_of(finding.kind),
                       finding.actual.empty() || !finding.actual.begin()->second
                           ? "nothing"
                           : signature_text(*finding.actual.at(finding.culprits.front())),
                       ranks_text(evidence.run, who_agreed(evidence, finding)),
                       finding.expected ? "called " + signature_text(*finding.expected) : "agree");
  }
  if (finding.step) text += fmt::format(", in step {}", *finding.step);
  text += hang_text(finding);
  if (!finding.detail.empty()) text += "; " + finding.detail;
  return text;
}

std::string sizes_summary(const Evidence& evidence, const Finding& finding) {
  const Message& message = *finding.message;
  std::string text =
      fmt::format("message {} (counted from 0) from {} to {} on {}: {} where the other end takes {}; {}",
                  message.number, rank_name(evidence.run, message.rank), rank_name(evidence.run, *message.peer),
                  evidence.table.comms[*finding.comm].name, signature_text(*finding.expected),
                  signature_text(*finding.actual.at(*message.peer)), finding.detail);
  return text + hang_text(finding);
}

}  // namespace lockstep
