// SPDX-License-Identifier: MIT
//
// From waits to blame.
//
// A rank that a wait misses is a root cause unless it is itself held up in another wait; then the blame moves on to
// those that one misses, and so on. What remains is ranks that wait for nobody, or a cycle, which blames nobody. A
// communicator whose calls differed explains every wait that ends in it.
//
// How a culprit left decides the kind: alive = missing-call; ended or tore the communicator down in good order =
// left-early; otherwise = died. When its peers had already waited the full threshold before it ended, the hang came
// first, and the end is somebody's reaction to it: then it counts as alive at that time.

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "tools/rules.h"

namespace lockstep {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kReaction = 12 * kSecond;  // ends this close after one another may be one reaction

using trace::CommState;
using trace::Time;

const Member* member_of(const Comm& comm, size_t rank) {
  for (const Member& member : comm.members)
    if (member.rank == rank) return &member;
  return nullptr;
}

// --- how a rank left
// -------------------------------------------------------------------------------------------------------

struct Departure {
  Kind kind = Kind::missing_call;
  bool final = false;  // it can never come any more
  Time when;
  std::string how;  // one clause; empty when it is simply alive
};

// When the last of the waiters ended; 0 = one still lives.
int64_t waiters_end(const Evidence& evidence, const Wait& wait) {
  int64_t last = 0;
  for (const size_t rank : wait.waiting) {
    const Life& life = evidence.life(rank);
    if (life.end == End::none) return 0;
    last = std::max(last, life.when.wall_ns);
  }
  return last;
}

// Did it leave only after its peers had already waited the full threshold?
bool hang_came_first(const Evidence& evidence, const Wait& wait, const Time& left, bool in_good_order) {
  if (left.wall_ns == 0 || left.wall_ns - wait.since.wall_ns < evidence.threshold_ns) return false;
  if (wait.age_ns < evidence.threshold_ns) return false;
  if (!in_good_order) return true;
  const int64_t others = waiters_end(evidence, wait);
  return others != 0 && others - left.wall_ns < kReaction;  // all wound up together: somebody stopped the job
}

Departure departure_of(const Evidence& evidence, const Wait& wait, size_t rank) {
  const Life& life = evidence.life(rank);
  Departure departure;
  if (const Member* member = member_of(evidence.table.comms[wait.comm], rank);
      member && wait.what != Wait::What::init) {
    const CommState state = member->info->state;
    const bool torn_down =
        state == CommState::destroyed || state == CommState::finalized || state == CommState::aborted;
    const bool before_end = life.end == End::none || life.when.wall_ns > member->info->ended.wall_ns;
    if (torn_down && before_end && !hang_came_first(evidence, wait, member->info->ended, state != CommState::aborted)) {
      departure = {Kind::left_early, true, member->info->ended,
                   state == CommState::aborted ? "it had aborted that communicator"
                                               : "it had already torn that communicator down"};
      return departure;
    }
  }
  if (life.end == End::none) return departure;
  if (hang_came_first(evidence, wait, life.when, life.end == End::clean)) {
    departure.how = "it ended only after the hang: it " + end_in_words(life);
    return departure;
  }
  if (evidence.outside && life.end != End::clean) return departure;  // stopped with all the others
  departure = {life.end == End::clean ? Kind::left_early : Kind::died, true, life.when, "it " + end_in_words(life)};
  return departure;
}

// --- who is held up where
// ----------------------------------------------------------------------------------------------------

struct Graph {
  const Evidence& evidence;
  const std::vector<Wait>& waits;
  const std::set<size_t>& explained;
  std::vector<bool> counts;                        // per wait: old enough, or final
  std::vector<std::vector<size_t>> held_in;        // per rank: waits that hold it up
  std::vector<std::optional<size_t>> mismatch_of;  // per rank: communicator whose mismatch holds it up
};

bool is_final(const Evidence& evidence, const Wait& wait) {
  const bool somebody_lives = std::any_of(wait.waiting.begin(), wait.waiting.end(),
                                          [&](size_t rank) { return evidence.life(rank).end == End::none; });
  return somebody_lives && std::any_of(wait.absent.begin(), wait.absent.end(),
                                       [&](size_t rank) { return departure_of(evidence, wait, rank).final; });
}

bool is_quiet(const Evidence& evidence, size_t rank) {
  const Time seen = evidence.life(rank).seen;
  return seen.mono_ns - evidence.file(rank).last_call.mono_ns >= std::min<int64_t>(evidence.threshold_ns, 2 * kSecond);
}

// Held up, not merely enqueued: its stack says so, or, without a stack, it has been quiet since.
bool is_held(const Evidence& evidence, size_t rank) {
  if (evidence.life(rank).end == End::clean) return false;
  switch (where_it_sits(evidence, rank)) {
    case Sits::waiting:
      return true;
    case Sits::elsewhere:
      return false;
    case Sits::unknown:
      return is_quiet(evidence, rank) || evidence.life(rank).end != End::none;
  }
  return false;
}

Graph build_graph(const Evidence& evidence, const std::vector<Wait>& waits, const std::set<size_t>& explained,
                  const std::vector<Finding>& mismatches) {
  Graph graph{evidence, waits, explained, {}, {}, {}};
  graph.held_in.resize(evidence.run.ranks.size());
  graph.mismatch_of.resize(evidence.run.ranks.size());
  std::vector<bool> held;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) held.push_back(is_held(evidence, rank));
  for (size_t i = 0; i < waits.size(); i++) {
    graph.counts.push_back(waits[i].age_ns >= evidence.threshold_ns || is_final(evidence, waits[i]));
    for (const size_t rank : waits[i].waiting)
      if (held[rank]) graph.held_in[rank].push_back(i);
  }
  for (const Finding& mismatch : mismatches) {
    if (!mismatch.comm) continue;
    for (const Member& member : evidence.table.comms[*mismatch.comm].members)
      if (member.launched > *mismatch.seq && held[member.rank]) graph.mismatch_of[member.rank] = *mismatch.comm;
  }
  return graph;
}

// What a wait comes down to: the waits whose missing ranks wait for nobody, and mismatches.
struct Roots {
  std::set<size_t> waits, mismatched_comms;
  bool cycle = false;
};

// Absent ranks of a wait that nothing else holds up.
std::vector<size_t> free_absents(const Graph& graph, size_t wait) {
  std::vector<size_t> free;
  for (const size_t rank : graph.waits[wait].absent) {
    const auto& held = graph.held_in[rank];
    const bool elsewhere = std::any_of(held.begin(), held.end(), [&](size_t other) { return other != wait; });
    const bool gone = departure_of(graph.evidence, graph.waits[wait], rank).final;
    if (gone || (!elsewhere && !graph.mismatch_of[rank])) free.push_back(rank);
  }
  return free;
}

// On a communicator whose calls differed nearly everything follows from that; but a rank that is alive and seen to sit
// outside NCCL has also stayed away from this call.
std::vector<size_t> went_elsewhere(const Graph& graph, size_t wait) {
  std::vector<size_t> ranks;
  for (const size_t rank : graph.waits[wait].absent)
    if (departure_of(graph.evidence, graph.waits[wait], rank).kind == Kind::missing_call &&
        where_it_sits(graph.evidence, rank) == Sits::elsewhere)
      ranks.push_back(rank);
  return ranks;
}

// Those to blame for a wait that is a root.
std::vector<size_t> culprits_of(const Graph& graph, size_t wait) {
  const Wait& of = graph.waits[wait];
  const bool is_explained = of.what == Wait::What::collective && graph.explained.count(of.comm);
  return is_explained ? went_elsewhere(graph, wait) : free_absents(graph, wait);
}

void collect_roots(const Graph& graph, size_t wait, std::set<size_t>& path, std::set<size_t>& done, Roots& roots) {
  if (path.count(wait)) {
    roots.cycle = true;
    return;
  }
  if (!done.insert(wait).second) return;
  const Wait& of = graph.waits[wait];
  if (of.what == Wait::What::collective && graph.explained.count(of.comm)) {
    roots.mismatched_comms.insert(of.comm);
    if (!went_elsewhere(graph, wait).empty()) roots.waits.insert(wait);
    return;
  }
  if (!free_absents(graph, wait).empty() || of.absent.empty()) {
    roots.waits.insert(wait);
    return;
  }
  path.insert(wait);
  for (const size_t rank : of.absent) {
    if (graph.mismatch_of[rank]) roots.mismatched_comms.insert(*graph.mismatch_of[rank]);
    for (const size_t next : graph.held_in[rank])
      if (next != wait) collect_roots(graph, next, path, done, roots);
  }
  path.erase(wait);
}

// --- findings
// ----------------------------------------------------------------------------------------------------------------

void add_unique(std::vector<size_t>& to, const std::vector<size_t>& ranks, const std::vector<size_t>& except) {
  for (const size_t rank : ranks)
    if (std::find(to.begin(), to.end(), rank) == to.end() &&
        std::find(except.begin(), except.end(), rank) == except.end())
      to.push_back(rank);
}

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
  for (const trace::Call* call : waiter->p2p)
    if (call->called.mono_ns == wait.since.mono_ns) finding.op = op_name(*call);
  const bool sends = finding.op == "Send";
  finding.detail = fmt::format("the {} is number {} in that direction (from 0) and has no {} at the other end",
                               sends ? "send" : "receive", wait.seq, sends ? "receive" : "send");
}

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
  if (wait.absent.size() > wait.waiting.size() && wait.what == Wait::What::collective)
    doubt(Confidence::likely, "more ranks stayed away from this call than made it, so the odd one may be who made it");
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

Finding blank_finding(const Evidence& evidence, const Wait& wait) {
  Finding finding;
  finding.comm = wait.comm;
  finding.hangs = true;
  finding.since = wait.since;
  finding.pending_ns = wait.age_ns;
  set_op(evidence, wait, finding);
  return finding;
}

// One finding per way of leaving; the ends come before the merely absent.
// `age` is that of the oldest wait that comes down to this one.
std::vector<Finding> blame(const Graph& graph, const Wait& wait, const std::vector<size_t>& culprits,
                           const std::vector<size_t>& victims, int64_t age) {
  const Evidence& evidence = graph.evidence;
  std::map<Kind, Finding> by_kind;
  for (const size_t rank : culprits) {
    const Departure departure = departure_of(evidence, wait, rank);
    if (age < evidence.threshold_ns && !departure.final) continue;  // merely late so far
    const Kind kind = kind_for(wait, departure.kind);
    auto [place, is_new] = by_kind.try_emplace(kind);
    Finding& finding = place->second;
    if (is_new) {
      finding = blank_finding(evidence, wait);
      finding.kind = kind;
    }
    finding.culprits.push_back(rank);
    finding.actual[rank] = std::nullopt;
    if (!departure.how.empty()) finding.detail = departure.how;
    if (departure.final && departure.when.wall_ns) finding.since = departure.when;
  }
  std::vector<Finding> findings;
  for (const Kind kind :
       {Kind::died, Kind::left_early, Kind::init_incomplete, Kind::missing_call, Kind::p2p_unmatched}) {
    const auto found = by_kind.find(kind);
    if (found == by_kind.end()) continue;
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
  if (mismatch.hangs || !mismatch.comm) return;
  for (const Member& member : evidence.table.comms[*mismatch.comm].members) {
    if (member.launched <= *mismatch.seq || !is_stuck(evidence, member.rank)) continue;
    const int64_t quiet = evidence.life(member.rank).seen.mono_ns - member.file->last_call.mono_ns;
    mismatch.hangs = true;
    mismatch.stuck_seq = std::max(mismatch.stuck_seq.value_or(0), member.launched - 1);
    mismatch.pending_ns = std::max(mismatch.pending_ns, quiet);
  }
}

Finding blame_cycle(const Graph& graph, size_t start) {
  const Evidence& evidence = graph.evidence;
  Finding finding = blank_finding(evidence, graph.waits[start]);
  bool all_p2p = true;
  // Follow the first missing rank of each wait until one comes again.
  std::vector<size_t> ranks;
  size_t wait = start;
  while (true) {
    all_p2p = all_p2p && graph.waits[wait].what == Wait::What::p2p;
    const std::vector<size_t>& absent = graph.waits[wait].absent;
    const auto held = std::find_if(absent.begin(), absent.end(), [&](size_t rank) {
      const auto& in = graph.held_in[rank];
      return std::any_of(in.begin(), in.end(), [&](size_t other) { return other != wait; });
    });
    if (held == absent.end()) break;
    const auto seen = std::find(ranks.begin(), ranks.end(), *held);
    if (seen != ranks.end()) {
      ranks.erase(ranks.begin(), seen);
      break;
    }
    ranks.push_back(*held);
    const auto& in = graph.held_in[*held];
    wait = *std::find_if(in.begin(), in.end(), [&](size_t other) { return other != wait; });
  }
  finding.kind = all_p2p ? Kind::p2p_cycle : Kind::cross_communicator_cycle;
  finding.cycle = ranks;
  finding.confidence = Confidence::likely;
  finding.doubts.push_back("host waits are not on record; the order of calls and the stacks say it");
  return finding;
}

}  // namespace

std::vector<Finding> blame_waits(const Evidence& evidence, const std::vector<Wait>& waits,
                                 const std::set<size_t>& explained, std::vector<Finding>& mismatches) {
  const Graph graph = build_graph(evidence, waits, explained, mismatches);
  struct Consequences {
    std::vector<size_t> victims;
    int64_t age_ns = 0;
  };
  std::map<size_t, Consequences> consequences;  // root wait -> what comes down to it
  std::optional<size_t> cycle;
  std::vector<size_t> in_cycle;
  for (size_t i = 0; i < waits.size(); i++) {
    if (!graph.counts[i]) continue;
    std::set<size_t> path, done;
    Roots roots;
    collect_roots(graph, i, path, done, roots);
    for (const size_t root : roots.waits) {
      Consequences& of = consequences[root];
      add_unique(of.victims, waits[i].waiting, {});
      of.age_ns = std::max(of.age_ns, waits[i].age_ns);
    }
    for (Finding& mismatch : mismatches) {
      if (!mismatch.comm || !roots.mismatched_comms.count(*mismatch.comm)) continue;
      mismatch.hangs = true;
      mismatch.pending_ns = std::max(mismatch.pending_ns, waits[i].age_ns);
      if (waits[i].comm == *mismatch.comm && waits[i].what == Wait::What::collective) mismatch.stuck_seq = waits[i].seq;
      add_unique(mismatch.victims, waits[i].waiting, mismatch.culprits);
    }
    if (roots.waits.empty() && roots.mismatched_comms.empty() && roots.cycle) {
      if (!cycle) cycle = i;
      add_unique(in_cycle, waits[i].waiting, {});
    }
  }
  for (Finding& mismatch : mismatches) note_stuck_ranks(evidence, mismatch);
  std::vector<Finding> findings;
  for (const auto& [root, of] : consequences) {
    const Wait& wait = waits[root];
    const bool making = wait.what == Wait::What::init || wait.what == Wait::What::split;
    std::vector<Finding> some = !wait.absent.empty()
                                    ? blame(graph, wait, culprits_of(graph, root), of.victims, of.age_ns)
                                : making ? std::vector<Finding>{blame_traceless(evidence, wait, of.victims)}
                                         : std::vector<Finding>{blame_nobody(evidence, wait, of.victims)};
    for (Finding& finding : some) findings.push_back(std::move(finding));
  }
  merge_same_culprits(findings);
  if (cycle) {
    Finding finding = blame_cycle(graph, *cycle);
    finding.victims = in_cycle;
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace lockstep
