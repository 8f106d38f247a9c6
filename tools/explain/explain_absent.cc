// SPDX-License-Identifier: MIT
//
// Sentences about ranks that others wait for: absent, gone, dead, or without a trace.

#include <fmt/format.h>

#include <algorithm>

#include "tools/explain/explain.h"
#include "tools/explain/explain_parts.h"

namespace lockstep {
namespace {

// "rank 3", "ranks 1-3"
std::string rank_numbers(const std::vector<int>& numbers) {
  return (numbers.size() == 1 ? "rank " : "ranks ") + number_ranges(numbers);
}

std::string where_text(const Evidence& evidence, const Finding& finding) {
  if (finding.culprits.size() != 1) return "";
  const size_t rank = finding.culprits.front();
  const auto stack = finding.stacks.find(rank);
  if (stack == finding.stacks.end() || stack->second.origin != "now") return "";
  const Frame* frame = users_frame(stack->second.frames);
  if (!frame) frame = &stack->second.frames.front();
  const trace::TraceFile& file = evidence.file(rank);
  const int64_t quiet = evidence.life(rank).seen.mono_ns - file.last_call.mono_ns;
  std::string text = fmt::format("; it sits in {}", frame_text(*frame));
  if (file.last_call.mono_ns) text += fmt::format(", {} after its last NCCL call", duration_text(quiet));
  return text;
}

}  // namespace

std::string absent_summary(const Evidence& evidence, const Finding& finding) {
  const std::string what = call_text(evidence, finding);
  const std::string subject = who(evidence.run, finding.culprits);
  std::string text;
  switch (finding.kind) {
    case Kind::left_early:
      text = fmt::format("{} left before {}: {}", subject, what, finding.detail);
      break;
    case Kind::died:
      text = fmt::format("{} died before {}: {}", subject, what, finding.detail);
      break;
    case Kind::init_incomplete:
      text = fmt::format("{} never joined {}", subject, what);
      break;
    case Kind::p2p_unmatched:
      text = fmt::format("{} never answered a {}", subject, what);
      break;
    default:
      text = fmt::format("{} never made {}", subject, what);
      break;
  }
  const bool told = finding.kind == Kind::left_early || finding.kind == Kind::died;
  if (finding.kind == Kind::missing_call || finding.kind == Kind::init_incomplete ||
      finding.kind == Kind::p2p_unmatched)
    text += where_text(evidence, finding);
  text += marks_text(finding) + waiting_text(evidence, finding);
  if (!told && !finding.detail.empty()) text += "; " + finding.detail;
  return text;
}

std::string init_nobody_summary(const Evidence& evidence, const Finding& finding) {
  const Comm& comm = evidence.table.comms[*finding.comm];
  const std::string missing = finding.traceless.empty()
                                  ? std::string("others")
                                  : fmt::format("{}, without a trace,", rank_numbers(finding.traceless));
  const std::string joined =
      finding.joined ? fmt::format("{} of its {} ranks are known to have called it", *finding.joined, comm.nranks)
                     : fmt::format("it has {} ranks", comm.nranks);
  return fmt::format("{} never joined {}: {}{}", missing, call_text(evidence, finding), joined,
                     waiting_text(evidence, finding));
}

std::string death_summary(const Evidence& evidence, const Finding& finding) {
  if (finding.culprits.empty())
    return fmt::format("all {} ranks ended alike: each {}", evidence.run.ranks.size(), finding.detail.substr(3));
  std::string text = fmt::format("{} died: {}", who(evidence.run, finding.culprits), finding.detail);
  if (finding.agreed_seq && finding.comm)
    text +=
        fmt::format("; its last collective was {} #{} on {}", finding.agreed_op.empty() ? "call" : finding.agreed_op,
                    *finding.agreed_seq, evidence.table.comms[*finding.comm].name);
  return text + marks_text(finding);
}

std::string missing_trace_summary(const Evidence& evidence, const Finding& finding) {
  std::string text = "no trace of " + rank_numbers(evidence.run.missing);
  if (!finding.traceless.empty())
    text += fmt::format(", and all others sit in {} for {}: they may be waiting for {}", call_text(evidence, finding),
                        duration_text(finding.pending_ns), evidence.run.missing.size() == 1 ? "it" : "them");
  return text;
}

}  // namespace lockstep
