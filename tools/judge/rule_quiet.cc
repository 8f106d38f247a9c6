// SPDX-License-Identifier: MIT
//
// When nobody is missing anywhere. Ranks that all sit in the same call are stalled together, and blaming one of them
// would be a guess. Ranks that are quiet with nothing pending are idle. One that is behind, but not yet for long, is
// late. And a rank without a trace may hold the answer.

#include <fmt/format.h>

#include <algorithm>

#include "interpose/abi/functions.h"
#include "tools/job/lookup.h"
#include "tools/judge/wait_graph.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::Time;

// The call some thread of the rank has not come back from for the full threshold.
const Call* stuck_call(const Evidence& evidence, size_t rank) {
  const Rank& who = evidence.run.ranks[rank];
  for (const trace::ThreadInfo& thread : evidence.file(rank).threads) {
    if (!thread.open_call) continue;
    if (!is_its_thread(who, thread.tid)) continue;
    const std::vector<Call>& calls = evidence.file(rank).calls;
    const auto at =
        std::find_if(calls.rbegin(), calls.rend(), [&](const Call& call) { return call.event == *thread.open_call; });
    if (at != calls.rend() && evidence.life(rank).seen.mono_ns - at->called.mono_ns >= evidence.threshold_ns)
      return &*at;
  }
  return nullptr;
}

// The newest collective of the rank, with the communicator it is on.
void name_newest_call(const Evidence& evidence, size_t rank, Finding& finding) {
  const Call* newest = nullptr;
  for (size_t index = 0; index < evidence.table.comms.size(); index++)
    for (const Member& member : evidence.table.comms[index].members) {
      if (member.rank != rank || member.collectives.empty()) continue;
      const Call* call = member.collectives.back();
      if (newest && call->called.mono_ns <= newest->called.mono_ns) continue;
      newest = call;
      finding.comm = index;
      finding.seq = call->seq;
      finding.op = op_name(*call);
      finding.expected = signature_of(*call);
      finding.since = call->called;
    }
}

// NCCL's own threads in a stopped process stand still, too, so that calls it has made do not get on.
std::vector<size_t> stopped_ranks(const Evidence& evidence) {
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++)
    if (evidence.life(rank).end != End::clean && evidence.stopped(rank) != Stopped::no) ranks.push_back(rank);
  return ranks;
}

std::optional<Finding> stalled(const Evidence& evidence) {
  Finding finding;
  finding.kind = Kind::stalled_together;
  finding.confidence = Confidence::possible;
  const Call* stuck = nullptr;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) {
    if (evidence.life(rank).end == End::clean) continue;
    const Call* call = stuck_call(evidence, rank);
    if (!call && !is_stuck(evidence, rank)) continue;
    finding.victims.push_back(rank);
    finding.pending_ns = std::max(finding.pending_ns, evidence.quiet(rank));
    if (call && !stuck) stuck = call;
  }
  if (finding.victims.empty()) return std::nullopt;
  name_newest_call(evidence, finding.victims.front(), finding);
  if (stuck) {
    finding.op = op_name(*stuck);
    finding.since = stuck->called;
    if (!is_collective(*stuck)) {
      finding.seq.reset();
      finding.expected.reset();
    }
  }
  if (std::vector<size_t> stopped = stopped_ranks(evidence); !stopped.empty()) {
    finding.kind = Kind::host_blocked;
    finding.hangs = true;
    finding.culprits = std::move(stopped);
    finding.confidence = Confidence::likely;
    finding.doubts.push_back(
        "nobody is missing from this call; that it waits for who is stopped follows from that alone");
    return finding;
  }
  finding.doubts.push_back(
      "all ranks with a trace made the same calls; whether they started and completed on the device is not known");
  return finding;
}

std::optional<Finding> idle(const Evidence& evidence) {
  Finding finding;
  finding.kind = Kind::idle;
  finding.severity = Severity::note;
  int64_t shortest = INT64_MAX;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) {
    if (evidence.life(rank).end != End::none) return std::nullopt;
    if (evidence.file(rank).last_call.mono_ns == 0) continue;
    shortest = std::min(shortest, evidence.quiet(rank));
    finding.victims.push_back(rank);
  }
  if (finding.victims.empty() || shortest < evidence.threshold_ns) return std::nullopt;
  finding.pending_ns = shortest;
  name_newest_call(evidence, finding.victims.front(), finding);
  finding.victims.clear();
  return finding;
}

// Whom the oldest of these waits comes down to: ranks that do not wait themselves. Where it is not known what a rank
// does, all that is said is which call it has not made.
struct Late {
  const Wait* wait = nullptr;
  std::vector<size_t> ranks;
};

Late latest_comer(const Evidence& evidence, const std::vector<Wait>& waits) {
  const Flow empty(evidence);
  const Explained explained;
  const Graph graph = graph_of(evidence, waits, explained, {}, empty);
  Late late;
  for (const Wait& wait : waits) {
    if (wait.absent.empty() || (late.wait && late.wait->age_ns >= wait.age_ns)) continue;
    std::vector<size_t> ranks;
    for (const size_t rank : wait.absent) {
      const Stance stance = graph.stances[rank];
      const bool waits_itself = stance == Stance::held || graph.sits[rank] == Sits::waiting;
      if (stance == Stance::own || !waits_itself) ranks.push_back(rank);
    }
    if (!ranks.empty()) late = {&wait, std::move(ranks)};
  }
  return late;
}

std::optional<Finding> late(const Evidence& evidence, const std::vector<Wait>& waits) {
  int64_t age = 0;
  for (const Wait& wait : waits)
    if (!wait.absent.empty()) age = std::max(age, wait.age_ns);
  if (evidence.outside || age == 0 || age < evidence.threshold_ns / 10) return std::nullopt;
  const Late last = latest_comer(evidence, waits);
  const auto alive = [&](size_t rank) { return evidence.life(rank).end == End::none; };
  if (!last.wait || !std::all_of(last.ranks.begin(), last.ranks.end(), alive)) return std::nullopt;
  Finding finding;
  finding.kind = Kind::straggler;
  finding.severity = Severity::note;
  finding.comm = last.wait->comm;
  finding.since = last.wait->since;
  finding.pending_ns = last.wait->age_ns;
  finding.victims = last.wait->waiting;
  for (const size_t rank : last.ranks) finding.actual[rank] = std::nullopt;
  set_op(evidence, *last.wait, finding);
  return finding;
}

}  // namespace

std::vector<Finding> find_quiet(const Evidence& evidence, const std::vector<Wait>& waits) {
  if (std::optional<Finding> behind = late(evidence, waits)) return {std::move(*behind)};
  if (!waits.empty()) return {};
  if (std::optional<Finding> together = stalled(evidence)) return {std::move(*together)};
  if (std::optional<Finding> nothing = idle(evidence)) return {std::move(*nothing)};
  return {};
}

std::vector<Finding> find_missing_traces(const Evidence& evidence, const std::vector<Finding>& found) {
  const auto says_so = [](const Finding& finding) { return finding.kind == Kind::missing_trace; };
  if (evidence.run.missing.empty() || std::any_of(found.begin(), found.end(), says_so)) return {};
  Finding finding;
  finding.kind = Kind::missing_trace;
  const bool judged = std::any_of(found.begin(), found.end(), [](const Finding& f) {
    return f.severity == Severity::error && f.kind != Kind::stalled_together;
  });
  finding.severity = judged ? Severity::warning : Severity::error;
  finding.confidence = Confidence::possible;
  finding.doubts.push_back("a missing trace is a gap in the evidence, not a fault of that rank");
  // Where all the others sit in the same call, the rank without a trace is the likeliest one they wait for.
  for (const Finding& other : found)
    if (other.kind == Kind::stalled_together && other.victims.size() == evidence.run.ranks.size()) {
      finding.traceless = evidence.run.missing;
      finding.victims = other.victims;
      finding.comm = other.comm;
      finding.seq = other.seq;
      finding.op = other.op;
      finding.expected = other.expected;
      finding.pending_ns = other.pending_ns;
      finding.since = other.since;
    }
  return {finding};
}

}  // namespace lockstep
