// SPDX-License-Identifier: MIT
//
// From waits to blame: which of the causes that wait_graph.h finds count, and what comes down to each. A communicator
// whose calls differed explains every wait that ends in it.

#include <fmt/format.h>

#include <algorithm>

#include "tools/explain/explain.h"
#include "tools/judge/wait_graph.h"

namespace lockstep {
namespace {

// A rank that stays away is missed on every communicator it belongs to; the first who missed it tells which call was
// next.
void merge_same_culprits(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.since.wall_ns < b.since.wall_ns; });
  std::vector<Finding> merged;
  for (Finding& finding : findings) {
    const auto same = std::find_if(merged.begin(), merged.end(), [&](const Finding& other) {
      return !finding.culprits.empty() && std::includes(other.culprits.begin(), other.culprits.end(),
                                                        finding.culprits.begin(), finding.culprits.end());
    });
    if (same == merged.end()) {
      merged.push_back(std::move(finding));
    } else {
      add_unique(same->victims, finding.victims, same->culprits);
      same->pending_ns = std::max(same->pending_ns, finding.pending_ns);
    }
  }
  findings = std::move(merged);
}

// After calls that differ all ranks may have made equally many, and still none gets further.
void note_stuck_ranks(const Evidence& evidence, Finding& mismatch) {
  if (mismatch.hangs || !mismatch.begun || !mismatch.comm || !mismatch.seq) return;
  for (const Member& member : evidence.table.comms[*mismatch.comm].members) {
    if (member.launched <= *mismatch.seq || !is_stuck(evidence, member.rank)) continue;
    const int64_t quiet = evidence.quiet(member.rank);
    mismatch.hangs = true;
    mismatch.stuck_seq = std::max(mismatch.stuck_seq.value_or(0), member.launched - 1);
    mismatch.pending_ns = std::max(mismatch.pending_ns, quiet);
  }
}

// --- all together

bool is_final(const Evidence& evidence, const Wait& wait) {
  const bool somebody_lives = std::any_of(wait.waiting.begin(), wait.waiting.end(),
                                          [&](size_t rank) { return evidence.life(rank).end == End::none; });
  return somebody_lives && std::any_of(wait.absent.begin(), wait.absent.end(),
                                       [&](size_t rank) { return departure_of(evidence, wait, rank).final; });
}

bool is_old(const Evidence& evidence, const Wait& wait) {
  return wait.age_ns >= evidence.threshold_ns || is_final(evidence, wait);
}

void note_own_work(const Graph& graph, Finding& finding) {
  const bool own = std::all_of(finding.culprits.begin(), finding.culprits.end(),
                               [&](size_t rank) { return graph.stances[rank] == Stance::own; });
  if (!own || (finding.kind != Kind::missing_call && finding.kind != Kind::p2p_unmatched &&
               finding.kind != Kind::init_incomplete))
    return;
  finding.kind = Kind::host_blocked;
  finding.confidence = std::max(finding.confidence, Confidence::likely);
  finding.doubts.push_back("that the work it waits for is not NCCL's follows from all of NCCL's being done");
}

std::vector<Finding> findings_for(const Graph& graph, const Cause& cause, const Downstream& below) {
  const Wait& wait = graph.waits[cause.wait];
  std::vector<size_t> victims;
  int64_t age = 0;
  bool counts = false;
  for (size_t i = 0; i < graph.waits.size(); i++) {
    if (!below.has(i)) continue;
    const bool old = is_old(graph.evidence, graph.waits[i]);
    counts = counts || old;
    age = std::max(age, graph.waits[i].age_ns);
    if (old) add_unique(victims, graph.waits[i].waiting, {});
  }
  if (!counts) return {};
  add_unique(victims, stuck_in(graph, below.held(), graph.evidence.threshold_ns / 2), {});
  if (!cause.culprits.empty()) {
    std::vector<Finding> findings = blame(graph.evidence, wait, cause.culprits, victims, age);
    for (Finding& finding : findings) note_own_work(graph, finding);
    return findings;
  }
  const bool making = wait.what == Wait::What::init || wait.what == Wait::What::split;
  if (making) return {blame_traceless(graph.evidence, wait, victims)};
  return {blame_nobody(graph.evidence, wait, victims)};
}

// What follows from calls that differ: waits behind that row or message, and ranks stuck in it.
void charge(const Graph& graph, const Downstream& below, Finding& mismatch) {
  if (!mismatch.begun) return;
  const std::vector<size_t> stuck = stuck_in(graph, below.held(), graph.evidence.threshold_ns);
  for (const size_t rank : stuck) {
    if (!mismatch.message) break;  // that rows hang is told by what is behind them
    mismatch.hangs = true;
    mismatch.pending_ns = std::max(mismatch.pending_ns, graph.evidence.quiet(rank));
  }
  for (size_t i = 0; i < graph.waits.size(); i++) {
    const Wait& wait = graph.waits[i];
    if (!below.has(i) || !is_old(graph.evidence, wait)) continue;
    mismatch.hangs = true;
    mismatch.pending_ns = std::max(mismatch.pending_ns, wait.age_ns);
    if (wait.comm == *mismatch.comm && wait.what == Wait::What::collective) mismatch.stuck_seq = wait.seq;
    add_unique(mismatch.victims, wait.waiting, mismatch.culprits);
  }
  if (mismatch.hangs) add_unique(mismatch.victims, stuck, mismatch.culprits);
}

// Old waits that no cause accounts for: circles, and what cannot be seen.
void blame_the_rest(const Graph& graph, const std::vector<bool>& accounted, std::vector<Finding>& findings) {
  std::vector<size_t> rest;
  bool old = false, hidden = false;
  for (size_t i = 0; i < graph.waits.size(); i++) {
    if (accounted[i]) continue;
    rest.push_back(i);
    old = old || is_old(graph.evidence, graph.waits[i]);
    for (const size_t rank : graph.waits[i].absent) hidden = hidden || graph.stances[rank] == Stance::hidden;
  }
  if (!old) return;
  findings.push_back(hidden ? blame_hidden(graph, rest) : blame_circle(graph, rest));
}

}  // namespace

std::vector<Finding> blame_waits(const Evidence& evidence, const std::vector<Wait>& waits, const Explained& explained,
                                 std::vector<Finding>& mismatches) {
  std::vector<Finding> findings;
  if (!waits.empty() || !mismatches.empty()) {
    const Flow empty(evidence);
    const Graph graph = graph_of(evidence, waits, explained, mismatches, empty);
    std::vector<bool> accounted(waits.size());
    const auto settle = [&](Downstream& below) {
      below.settle();
      for (size_t i = 0; i < waits.size(); i++) accounted[i] = accounted[i] || below.has(i);
    };
    for (Finding& mismatch : mismatches) {
      Downstream below(graph);
      below.add(mismatch);
      settle(below);
      charge(graph, below, mismatch);
    }
    std::vector<Cause> causes = causes_of(graph);
    // Who was to join a communicator is known least; it is asked last.
    std::stable_partition(causes.begin(), causes.end(), [&](const Cause& cause) {
      return !cause.culprits.empty() || !is_open_to_all(waits[cause.wait]);
    });
    for (const Cause& cause : causes) {
      if (accounted[cause.wait] && cause.culprits.empty() && is_open_to_all(waits[cause.wait])) continue;
      Downstream below(graph);
      below.add(cause.wait);
      settle(below);
      for (Finding& finding : findings_for(graph, cause, below)) findings.push_back(std::move(finding));
    }
    merge_same_culprits(findings);
    blame_the_rest(graph, accounted, findings);
  }
  for (Finding& mismatch : mismatches) note_stuck_ranks(evidence, mismatch);
  return findings;
}

}  // namespace lockstep
