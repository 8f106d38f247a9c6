// SPDX-License-Identifier: MIT
//
// What is said of one wait and those it comes down to: a finding for each way in which they left.
//
// How a culprit left decides the kind (departure.cc): alive = missing-call; ended or tore the communicator down in good
// order = left-early; otherwise = died.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

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
    finding.detail =
        fmt::format("the {} is number {} in that direction (counted from 0); its {} was called, and not done",
                    sends ? "send" : "receive", wait.seq, sends ? "receive" : "send");
    return;
  }
  finding.detail = fmt::format("the {} is number {} in that direction (counted from 0) and has no {} at the other end",
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

// The ends come before the merely absent.
size_t order_of(Kind kind) {
  constexpr Kind kOrder[] = {Kind::died, Kind::left_early, Kind::init_incomplete, Kind::missing_call,
                             Kind::p2p_unmatched};
  return static_cast<size_t>(std::find(std::begin(kOrder), std::end(kOrder), kind) - std::begin(kOrder));
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

}  // namespace

std::vector<Finding> blame(const Evidence& evidence, const Wait& wait, const std::vector<size_t>& culprits,
                           const std::vector<size_t>& victims, int64_t age) {
  using Way = std::pair<Kind, bool>;  // ... and whether somebody's death may have brought it about
  std::map<Way, Finding> by_way;
  std::map<Way, std::vector<std::pair<size_t, std::string>>> hows;
  for (const size_t rank : culprits) {
    const Departure departure = departure_of(evidence, wait, rank);
    const bool late = is_late_enough(evidence, wait, age) &&
                      (evidence.life(rank).end != End::none || evidence.quiet(rank) >= evidence.threshold_ns / 2);
    if (!departure.final && !late) continue;  // on its way so far
    const Kind kind = kind_for(wait, departure.kind);
    const Way way{kind, kind == Kind::died && !deaths_before(evidence, rank).empty()};
    auto [place, is_new] = by_way.try_emplace(way);
    Finding& finding = place->second;
    if (is_new) {
      finding = blank_finding(evidence, wait);
      finding.kind = kind;
    }
    finding.culprits.push_back(rank);
    finding.actual[rank] = std::nullopt;
    if (!departure.how.empty()) hows[way].emplace_back(rank, departure.how);
    const bool is_first = finding.culprits.size() == 1 || departure.when.wall_ns < finding.since.wall_ns;
    if (departure.final && departure.when.wall_ns && is_first) finding.since = departure.when;
  }
  std::vector<Finding> findings;
  for (auto& [way, finding] : by_way) {
    if (hows.count(way)) finding.detail = how_they_left(evidence, hows[way]);
    add_unique(finding.victims, wait.waiting, culprits);
    add_unique(finding.victims, victims, culprits);
    weigh(evidence, wait, finding);
    findings.push_back(std::move(finding));
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return order_of(a.kind) < order_of(b.kind); });
  return findings;
}

namespace {

// The members of a communicator in the making are those who have called for it; of a split the parent's.
size_t how_many_joined(const Evidence& evidence, const Wait& wait) {
  const size_t members = evidence.table.comms[wait.comm].members.size();
  return wait.what == Wait::What::split ? members - std::min(members, wait.absent.size()) : members;
}

}  // namespace

// All members with a trace are in it, and others, without a trace, are not: what is missing is evidence.
Finding blame_traceless(const Evidence& evidence, const Wait& wait, const std::vector<size_t>& victims) {
  Finding finding = blank_finding(evidence, wait);
  finding.kind = Kind::init_incomplete;
  finding.traceless = wait.traceless_numbers;
  finding.joined = how_many_joined(evidence, wait);
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

}  // namespace lockstep
