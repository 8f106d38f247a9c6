// SPDX-License-Identifier: MIT
//
// From waits to blame: what is said of the causes that wait_graph.h finds. A communicator whose calls differed explains
// every wait that ends in it.
//
// How a culprit left decides the kind (departure.cc): alive = missing-call; ended or tore the communicator down in good
// order = left-early; otherwise = died.

#include <fmt/format.h>

#include <algorithm>

#include "tools/explain/explain.h"
#include "tools/job/lookup.h"
#include "tools/judge/wait_graph.h"

namespace lockstep {

void add_unique(std::vector<size_t>& to, const std::vector<size_t>& ranks, const std::vector<size_t>& except) {
  for (const size_t rank : ranks)
    if (std::find(to.begin(), to.end(), rank) == to.end() &&
        std::find(except.begin(), except.end(), rank) == except.end())
      to.push_back(rank);
}

namespace {

void describe_row(const Evidence& evidence, const Wait& wait, Finding& finding) {
  const Comm& comm = evidence.table.comms[wait.comm];
  finding.seq = wait.seq;
  for (const Member& member : comm.members)
    if (const trace::Call* call = member.call_at(wait.seq); call && finding.op.empty()) {
      finding.op = op_name(*call);
      finding.expected = signature_of(*call);
    }
  if (wait.seq == 0) return;
  finding.agreed_seq = wait.seq - 1;
  for (const Member& member : comm.members)
    if (const trace::Call* call = member.call_at(wait.seq - 1); call && finding.agreed_op.empty())
      finding.agreed_op = op_name(*call);
}

void describe_edge(const Evidence& evidence, const Wait& wait, Finding& finding) {
  const Comm& comm = evidence.table.comms[wait.comm];
  const Member* waiter = member_of(comm, wait.waiting.front());
  const bool sends = waiter->comm_rank == wait.edge_from;
  finding.op = sends ? "Send" : "Recv";
  finding.message = Message{waiter->rank, std::nullopt, sends, wait.seq};
  if (!wait.absent.empty()) finding.message->peer = wait.absent.front();
  if (wait.answered) {
    finding.detail = fmt::format("the {} is number {} in that direction (from 0); its {} was called, and not done",
                                 sends ? "send" : "receive", wait.seq, sends ? "receive" : "send");
    return;
  }
  finding.detail = fmt::format("the {} is number {} in that direction (from 0) and has no {} at the other end",
                               sends ? "send" : "receive", wait.seq, sends ? "receive" : "send");
}

}  // namespace

void set_op(const Evidence& evidence, const Wait& wait, Finding& finding) {
  switch (wait.what) {
    case Wait::What::collective:
      return describe_row(evidence, wait, finding);
    case Wait::What::p2p:
      return describe_edge(evidence, wait, finding);
    case Wait::What::init:
      finding.op = "CommInitRank";
      return;
    case Wait::What::split:
      finding.op = "CommSplit";
      return;
  }
}

namespace {

void weigh(const Evidence& evidence, const Wait& wait, Finding& finding) {
  const Comm& comm = evidence.table.comms[wait.comm];
  const auto doubt = [&](Confidence at_most, std::string why) {
    finding.confidence = std::max(finding.confidence, at_most);
    finding.doubts.push_back(std::move(why));
  };
  const size_t untraced = comm.nranks > 0 ? static_cast<size_t>(comm.nranks) -
                                                std::min(comm.members.size(), static_cast<size_t>(comm.nranks))
                                          : 0;
  if (untraced && wait.what != Wait::What::init)
    doubt(Confidence::likely,
          fmt::format("{} of the {} ranks of this communicator left no trace", untraced, comm.nranks));
  if (wait.absent.size() >= wait.waiting.size() && wait.what == Wait::What::collective)
    doubt(Confidence::likely, "no more ranks made this call than stayed away, so the odd one may be who made it");
  if (!wait.candidates.empty())
    doubt(Confidence::likely, "the traces do not say who was to join this communicator; all others are held up");
  if (wait.what == Wait::What::p2p && !wait.answered && finding.kind != Kind::died)
    doubt(Confidence::likely, "one end has made more messages than the other: too few here, or too many there");
  for (const size_t rank : finding.culprits) {
    const trace::TraceFile& file = evidence.file(rank);
    if (file.dropped)
      doubt(Confidence::likely,
            fmt::format("{} events of {} were not recorded", file.dropped, rank_name(evidence.run, rank)));
    if (!file.recording)
      doubt(Confidence::possible, fmt::format("recording stopped in {}", rank_name(evidence.run, rank)));
    if (evidence.life(rank).guessed) doubt(Confidence::likely, "the end is inferred from a heartbeat that stopped");
  }
}

Kind kind_for(const Wait& wait, Kind kind) {
  const bool making = wait.what == Wait::What::init || wait.what == Wait::What::split;
  if (kind != Kind::missing_call) return kind;
  return making ? Kind::init_incomplete : wait.what == Wait::What::p2p ? Kind::p2p_unmatched : kind;
}

}  // namespace

Finding blank_finding(const Evidence& evidence, const Wait& wait) {
  Finding finding;
  finding.comm = wait.comm;
  finding.hangs = true;
  finding.since = wait.since;
  finding.pending_ns = wait.age_ns;
  set_op(evidence, wait, finding);
  return finding;
}

namespace {

// The oldest of the waits that come down to this one counts; but who has missed it for a moment only is on its way.
bool is_late_enough(const Evidence& evidence, const Wait& wait, int64_t age) {
  return age >= evidence.threshold_ns && wait.age_ns >= evidence.threshold_ns / 2;
}

// How those named left, each by itself where they left in different ways.
std::string how_they_left(const Evidence& evidence, const std::vector<std::pair<size_t, std::string>>& hows) {
  const bool same =
      std::all_of(hows.begin(), hows.end(), [&](const auto& each) { return each.second == hows.front().second; });
  if (same) return hows.front().second;
  std::string text;
  for (const auto& [rank, how] : hows)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", rank_name(evidence.run, rank), how);
  return text;
}

// One finding per way of leaving; the ends come before the merely absent.
// `age` is that of the oldest wait that comes down to this one.
std::vector<Finding> blame(const Evidence& evidence, const Wait& wait, const std::vector<size_t>& culprits,
                           const std::vector<size_t>& victims, int64_t age) {
  std::map<Kind, Finding> by_kind;
  std::map<Kind, std::vector<std::pair<size_t, std::string>>> hows;
  for (const size_t rank : culprits) {
    const Departure departure = departure_of(evidence, wait, rank);
    const bool late = is_late_enough(evidence, wait, age) &&
                      (evidence.life(rank).end != End::none || evidence.quiet(rank) >= evidence.threshold_ns / 2);
    if (!departure.final && !late) continue;  // on its way so far
    const Kind kind = kind_for(wait, departure.kind);
    auto [place, is_new] = by_kind.try_emplace(kind);
    Finding& finding = place->second;
    if (is_new) {
      finding = blank_finding(evidence, wait);
      finding.kind = kind;
    }
    finding.culprits.push_back(rank);
    finding.actual[rank] = std::nullopt;
    if (!departure.how.empty()) hows[kind].emplace_back(rank, departure.how);
    if (departure.final && departure.when.wall_ns) finding.since = departure.when;
  }
  std::vector<Finding> findings;
  for (const Kind kind :
       {Kind::died, Kind::left_early, Kind::init_incomplete, Kind::missing_call, Kind::p2p_unmatched}) {
    const auto found = by_kind.find(kind);
    if (found == by_kind.end()) continue;
    if (hows.count(kind)) found->second.detail = how_they_left(evidence, hows[kind]);
    add_unique(found->second.victims, wait.waiting, culprits);
    add_unique(found->second.victims, victims, culprits);
    weigh(evidence, wait, found->second);
    findings.push_back(std::move(found->second));
  }
  return findings;
}

// All members with a trace are in it, and others, without a trace, are not: what is missing is evidence.
Finding blame_traceless(const Evidence& evidence, const Wait& wait, const std::vector<size_t>& victims) {
  Finding finding = blank_finding(evidence, wait);
  finding.kind = Kind::init_incomplete;
  finding.traceless = wait.traceless_numbers;
  finding.confidence = wait.traceless_numbers.empty() ? Confidence::possible : Confidence::likely;
  if (wait.candidates.empty()) {
    finding.doubts.push_back(
        fmt::format("{} of {} members left no trace", wait.traceless, evidence.table.comms[wait.comm].nranks));
  } else {
    finding.doubts.push_back("the traces do not say which ranks were to join this communicator");
  }
  add_unique(finding.victims, wait.waiting, {});
  add_unique(finding.victims, victims, {});
  return finding;
}

// Those in it are stuck, and no rank with a trace is missing: there is nobody to blame.
Finding blame_nobody(const Evidence& evidence, const Wait& wait, const std::vector<size_t>& victims) {
  Finding finding;
  finding.comm = wait.comm;
  finding.hangs = true;
  finding.since = wait.since;
  finding.pending_ns = wait.age_ns;
  if (wait.what == Wait::What::collective) {
    describe_row(evidence, wait, finding);
  } else {
    const Member* waiter = member_of(evidence.table.comms[wait.comm], wait.waiting.front());
    finding.op = op_name(*waiter->p2p.back());
  }
  finding.confidence = Confidence::possible;
  if (wait.traceless) {
    finding.kind = Kind::missing_trace;
    finding.traceless = wait.traceless_numbers;
    finding.doubts.push_back(fmt::format("{} of the {} ranks of this communicator left no trace", wait.traceless,
                                         evidence.table.comms[wait.comm].nranks));
  } else {
    finding.kind = Kind::stalled_together;
    finding.doubts.push_back("nobody is missing from this call; whether it started on the device is not known");
  }
  add_unique(finding.victims, wait.waiting, {});
  add_unique(finding.victims, victims, {});
  return finding;
}

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
  if (mismatch.hangs || !mismatch.comm || !mismatch.seq) return;
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
  for (size_t rank = 0; mismatch.message && rank < graph.stances.size(); rank++) {
    if (!below.holds(rank) || !is_stuck(graph.evidence, rank)) continue;
    mismatch.hangs = true;
    mismatch.pending_ns = std::max(mismatch.pending_ns, graph.evidence.quiet(rank));
    add_unique(mismatch.victims, {rank}, mismatch.culprits);
  }
  for (size_t i = 0; i < graph.waits.size(); i++) {
    const Wait& wait = graph.waits[i];
    if (!below.has(i) || !is_old(graph.evidence, wait)) continue;
    mismatch.hangs = true;
    mismatch.pending_ns = std::max(mismatch.pending_ns, wait.age_ns);
    if (wait.comm == *mismatch.comm && wait.what == Wait::What::collective) mismatch.stuck_seq = wait.seq;
    add_unique(mismatch.victims, wait.waiting, mismatch.culprits);
  }
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

std::vector<Finding> blame_waits(const Evidence& evidence, const std::vector<Wait>& waits,
                                 const std::set<size_t>& explained, std::vector<Finding>& mismatches) {
  std::vector<Finding> findings;
  if (!waits.empty() || !mismatches.empty()) {
    const Flow empty(evidence);
    const Graph graph{evidence, waits, explained, empty, stances_of(evidence, waits, mismatches, empty)};
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
