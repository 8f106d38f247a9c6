// SPDX-License-Identifier: MIT
//
// The sentence that is the verdict, by kind, and the clauses that many kinds share.

#include <fmt/format.h>

#include <algorithm>

#include "tools/explain/explain.h"
#include "tools/explain/explain_parts.h"

namespace lockstep {
namespace {

std::string place_of(const Run& run, size_t rank) {
  const trace::FileHeader& header = run.process_of(rank).file.header;
  return fmt::format("host {}, pid {}", header.host, header.pid);
}

}  // namespace

std::string who(const Run& run, const std::vector<size_t>& ranks) {
  if (ranks.size() == 1 && run.ranks[ranks[0]].number >= 0)
    return fmt::format("{} ({})", rank_name(run, ranks[0]), place_of(run, ranks[0]));
  return ranks_text(run, ranks);
}

std::string call_text(const Evidence& evidence, const Finding& finding) {
  const std::string op = finding.op.empty() ? "collective" : finding.op;
  if (!finding.comm) return op;
  const std::string& name = evidence.table.comms[*finding.comm].name;
  return finding.seq ? fmt::format("{} #{} on {}", op, *finding.seq, name) : fmt::format("{} on {}", op, name);
}

std::string marks_text(const Finding& finding) {
  std::string text;
  if (finding.step) text += fmt::format("; last step {}", *finding.step);
  if (!finding.sample.empty()) text += fmt::format("{} sample {}", finding.step ? "," : ";", finding.sample);
  return text;
}

std::string waiting_text(const Evidence& evidence, const Finding& finding) {
  if (finding.victims.empty() || finding.pending_ns <= 0) return "";
  return fmt::format(
      "; {} waiting there for {}",
      ranks_text(evidence.run, finding.victims) + (finding.victims.size() == 1 ? " has been" : " have been"),
      duration_text(finding.pending_ns));
}

namespace {

std::string cycle_text(const Evidence& evidence, const Finding& finding) {
  if (finding.cycle.empty()) return ranks_text(evidence.run, finding.victims);
  std::string text;
  for (size_t i = 0; i < finding.cycle.size(); i++)
    text += rank_name(evidence.run, finding.cycle[i]) + (i ? ", which waits for " : " waits for ");
  return text + rank_name(evidence.run, finding.cycle.front());
}

}  // namespace

std::string summary_of(const Evidence& evidence, const Finding& finding) {
  if (calls_differ(finding)) return mismatch_summary(evidence, finding);
  switch (finding.kind) {
    case Kind::p2p_size_mismatch:
      return sizes_summary(evidence, finding);
    case Kind::not_started:
      return fmt::format("{} {} made {}, and it has not started on the device; on {} it has{}",
                         who(evidence.run, finding.culprits), finding.culprits.size() == 1 ? "has" : "have",
                         call_text(evidence, finding), ranks_text(evidence.run, finding.victims),
                         waiting_text(evidence, finding));
    case Kind::host_blocked:
      if (std::all_of(finding.culprits.begin(), finding.culprits.end(),
                      [&](size_t rank) { return evidence.stopped(rank) != Stopped::no; }))
        return fmt::format("{} made {} and cannot go on{}", who(evidence.run, finding.culprits),
                           call_text(evidence, finding), waiting_text(evidence, finding));
      return fmt::format("{} never made {}: it waits for the device, and not for anything of NCCL's{}",
                         who(evidence.run, finding.culprits), call_text(evidence, finding),
                         waiting_text(evidence, finding));
    case Kind::wrong_communicator:
      return fmt::format(
          "{} made {}, which the others never make; the same call was made before on a communicator of just "
          "those ranks{}",
          who(evidence.run, finding.culprits), call_text(evidence, finding), waiting_text(evidence, finding));
    case Kind::group_mismatch:
      return fmt::format("a group of messages on {} does not add up: {}{}", evidence.table.comms[*finding.comm].name,
                         finding.detail, waiting_text(evidence, finding));
    case Kind::teardown_order:
      return fmt::format("{} {} inside the teardown of communicators in different orders: some in {}, and {}; for {}",
                         ranks_text(evidence.run, finding.victims), finding.victims.size() == 1 ? "is" : "are",
                         call_text(evidence, finding), finding.detail, duration_text(finding.pending_ns));
    case Kind::comm_error:
      return fmt::format(
          "{}: {}, the first error on record",
          finding.culprits.empty() ? ranks_text(evidence.run, finding.victims) : who(evidence.run, finding.culprits),
          finding.detail);
    case Kind::duplicate_device:
      return fmt::format("{} could not be created: {}", evidence.table.comms[*finding.comm].name, finding.detail);
    case Kind::environment_differs:
      return "the ranks were started with different settings: " + finding.detail;
    case Kind::group_size:
      return "several worlds, where one may have been meant: " + finding.detail;
    case Kind::concurrent_use:
      return fmt::format("{} used {} from two threads at once: {}", ranks_text(evidence.run, finding.victims),
                         evidence.table.comms[*finding.comm].name, finding.detail);
    case Kind::duplicate_data:
      return finding.detail;
    case Kind::result_divergence:
      if (finding.culprits.empty())
        return fmt::format("the results of {} differ between {}", call_text(evidence, finding),
                           ranks_text(evidence.run, finding.victims));
      return fmt::format("{} got another result from {} than {}", who(evidence.run, finding.culprits),
                         call_text(evidence, finding), ranks_text(evidence.run, finding.victims));
    case Kind::missing_trace:
      return missing_trace_summary(evidence, finding);
    case Kind::stalled_together:
      if (!finding.detail.empty())
        return fmt::format("{} in {} for {}, and {}",
                           ranks_text(evidence.run, finding.victims) + (finding.victims.size() == 1 ? " sits" : " sit"),
                           call_text(evidence, finding), duration_text(finding.pending_ns), finding.detail);
      return fmt::format("all ranks made the same calls and {} in {} for {}: nobody is missing, so nobody is named",
                         ranks_text(evidence.run, finding.victims) + (finding.victims.size() == 1 ? " sits" : " sit"),
                         call_text(evidence, finding), duration_text(finding.pending_ns));
    case Kind::idle:
      return fmt::format("all ranks are idle: no NCCL call for {} and nothing pending",
                         duration_text(finding.pending_ns));
    case Kind::straggler: {
      std::vector<size_t> late;
      for (const auto& [rank, nothing] : finding.actual) late.push_back(rank);
      return fmt::format(
          "{} {} not made {} yet; {} waiting for {} since {}", ranks_text(evidence.run, late),
          late.size() == 1 ? "has" : "have", call_text(evidence, finding),
          ranks_text(evidence.run, finding.victims) + (finding.victims.size() == 1 ? " has been" : " have been"),
          duration_text(finding.pending_ns), clock_text(finding.since.wall_ns));
    }
    case Kind::cross_communicator_cycle:
    case Kind::order_inversion:
    case Kind::p2p_cycle:
      if (finding.severity == Severity::warning)
        return fmt::format("the order of calls differs: of {}, {}", call_text(evidence, finding), finding.detail);
      return fmt::format("ranks wait for one another in a circle: {}{}", cycle_text(evidence, finding),
                         waiting_text(evidence, finding));
    default:
      break;
  }
  if (finding.kind == Kind::died && !finding.hangs) return death_summary(evidence, finding);
  if (finding.culprits.empty()) return init_nobody_summary(evidence, finding);
  return absent_summary(evidence, finding);
}

}  // namespace lockstep
