// SPDX-License-Identifier: MIT
//
// From waits to blame.
//
// A rank that a wait misses is a root cause unless it is itself held up in another wait; then the blame moves on to
// those that one misses, and so on. What remains is ranks that wait for nobody, or a cycle, which blames nobody. A
// communicator whose calls differed explains every wait that ends in it.
//
// How a culprit left decides the kind (departure.cc): alive = missing-call; ended or tore the communicator down in good
// order = left-early; otherwise = died.

#include <fmt/format.h>

#include <algorithm>

#include "tools/explain.h"
#include "tools/flow.h"
#include "tools/rules.h"

namespace lockstep {
namespace {

using trace::Time;

const Member* member_of(const Comm& comm, size_t rank) {
  for (const Member& member : comm.members)
    if (member.rank == rank) return &member;
  return nullptr;
}

// --- who is held up where
// ----------------------------------------------------------------------------------------------------

// What a rank does that others wait for.
enum class Stance {
  free,    // it is in code of its own and could call
  held,    // it waits itself, behind something that is stuck
  own,     // it waits for the device, and all it has enqueued with NCCL is done: for work of its own
  hidden,  // it waits, or may be waiting, for something in which nobody is seen to be missing
};

struct Graph {
  const Evidence& evidence;
  const std::vector<Wait>& waits;
  const std::set<size_t>& explained;
  const Flow& empty;            // all operations, nothing stuck yet
  std::vector<Stance> stances;  // by rank
};

bool is_final(const Evidence& evidence, const Wait& wait) {
  const bool somebody_lives = std::any_of(wait.waiting.begin(), wait.waiting.end(),
                                          [&](size_t rank) { return evidence.life(rank).end == End::none; });
  return somebody_lives && std::any_of(wait.absent.begin(), wait.absent.end(),
                                       [&](size_t rank) { return departure_of(evidence, wait, rank).final; });
}

bool is_in(const std::vector<size_t>& ranks, size_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Waits that hold a rank by themselves, not through what is on its streams: it sits in the making of a communicator, or
// in something of which nobody is missing.
bool holds_directly(const Wait& wait, size_t rank) {
  const bool making = wait.what == Wait::What::init || wait.what == Wait::What::split;
  return (making || wait.absent.empty()) && is_in(wait.waiting, rank);
}

bool is_in_call(const Evidence& evidence, size_t rank) {
  const Rank& who = evidence.run.ranks[rank];
  const auto& threads = evidence.file(rank).threads;
  return std::any_of(threads.begin(), threads.end(), [&](const trace::ThreadInfo& thread) {
    return thread.open_call &&
           (who.tids.empty() || std::find(who.tids.begin(), who.tids.end(), thread.tid) != who.tids.end());
  });
}

std::vector<Stance> stances_of(const Evidence& evidence, const std::vector<Wait>& waits,
                               const std::vector<Finding>& mismatches, const Flow& empty) {
  Flow all = empty;
  for (const Wait& wait : waits) all.block(wait);
  for (const Finding& mismatch : mismatches) all.block(mismatch);
  std::vector<bool> direct(evidence.run.ranks.size());
  for (const Wait& wait : waits)
    for (const size_t rank : wait.waiting)
      if (holds_directly(wait, rank)) direct[rank] = true;
  std::vector<Stance> stances;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) {
    const Sits sits = where_it_sits(evidence, rank);
    const bool stuck = direct[rank] || all.holds(rank);
    const bool done = !stuck && empty.all_completed(rank);
    stances.push_back(sits == Sits::elsewhere || (done && sits == Sits::unknown) ? Stance::free
                      : stuck                                                    ? Stance::held
                      : done && !is_in_call(evidence, rank)                      ? Stance::own
                                                                                 : Stance::hidden);
  }
  return stances;
}

// On a communicator whose calls differed nearly everything follows from that; but a rank that is alive and seen to sit
// outside NCCL has also stayed away from this call.
std::vector<size_t> culprits_of(const Graph& graph, const Wait& wait) {
  const bool is_explained = wait.what == Wait::What::collective && graph.explained.count(wait.comm);
  std::vector<size_t> ranks;
  for (const size_t rank : wait.absent) {
    const Departure departure = departure_of(graph.evidence, wait, rank);
    const bool free = graph.stances[rank] == Stance::free || graph.stances[rank] == Stance::own;
    const bool stayed_away = departure.kind == Kind::missing_call && free;
    if (is_explained ? stayed_away : departure.final || free) ranks.push_back(rank);
  }
  return ranks;
}

// Everything that comes down to a set of causes: the waits whose missing ranks are held up by them, again and again.
class Downstream {
 public:
  explicit Downstream(const Graph& graph) : graph_(graph), flow_(graph.empty), taken_(graph.waits.size()) {}

  void add(size_t wait) {
    if (taken_[wait]) return;
    taken_[wait] = true;
    flow_.block(graph_.waits[wait]);
  }
  void add(const Finding& mismatch) { flow_.block(mismatch); }
  bool holds(size_t rank) const { return flow_.holds(rank); }
  void settle() {
    for (bool grew = true; grew;) {
      grew = false;
      for (size_t i = 0; i < graph_.waits.size(); i++) {
        if (taken_[i] || !follows(graph_.waits[i])) continue;
        add(i);
        grew = true;
      }
    }
  }
  bool has(size_t wait) const { return taken_[wait]; }

 private:
  bool follows(const Wait& wait) const {
    if (wait.what == Wait::What::collective && flow_.holds_row(wait.comm, wait.seq)) return true;
    return std::any_of(wait.absent.begin(), wait.absent.end(), [&](size_t rank) {
      return graph_.stances[rank] == Stance::held && (flow_.holds(rank) || is_directly_held(rank));
    });
  }
  bool is_directly_held(size_t rank) const {
    for (size_t i = 0; i < graph_.waits.size(); i++)
      if (taken_[i] && holds_directly(graph_.waits[i], rank)) return true;
    return false;
  }

  const Graph& graph_;
  Flow flow_;
  std::vector<bool> taken_;
};

// --- findings ---

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
  const bool sends = waiter->comm_rank == wait.edge_from;
  finding.op = sends ? "Send" : "Recv";
  finding.message = Message{waiter->rank, std::nullopt, sends, wait.seq};
  if (!wait.absent.empty()) finding.message->peer = wait.absent.front();
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
  if (wait.what == Wait::What::p2p && finding.kind != Kind::died)
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

Finding blank_finding(const Evidence& evidence, const Wait& wait) {
  Finding finding;
  finding.comm = wait.comm;
  finding.hangs = true;
  finding.since = wait.since;
  finding.pending_ns = wait.age_ns;
  set_op(evidence, wait, finding);
  return finding;
}

// The oldest of the waits that come down to this one counts; but who has missed it for a moment only is on its way.
bool is_late_enough(const Evidence& evidence, const Wait& wait, int64_t age) {
  return age >= evidence.threshold_ns && wait.age_ns >= evidence.threshold_ns / 2;
}

// One finding per way of leaving; the ends come before the merely absent.
// `age` is that of the oldest wait that comes down to this one.
std::vector<Finding> blame(const Evidence& evidence, const Wait& wait, const std::vector<size_t>& culprits,
                           const std::vector<size_t>& victims, int64_t age) {
  std::map<Kind, Finding> by_kind;
  for (const size_t rank : culprits) {
    const Departure departure = departure_of(evidence, wait, rank);
    if (!departure.final && !is_late_enough(evidence, wait, age)) continue;  // merely late so far
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
  if (mismatch.hangs || !mismatch.comm || !mismatch.seq) return;
  for (const Member& member : evidence.table.comms[*mismatch.comm].members) {
    if (member.launched <= *mismatch.seq || !is_stuck(evidence, member.rank)) continue;
    const int64_t quiet = evidence.quiet(member.rank);
    mismatch.hangs = true;
    mismatch.stuck_seq = std::max(mismatch.stuck_seq.value_or(0), member.launched - 1);
    mismatch.pending_ns = std::max(mismatch.pending_ns, quiet);
  }
}

// --- circles
// -----------------------------------------------------------------------------------------------------------------

// Which of these waits each of them comes down to: those that hold a rank it misses.
std::vector<std::vector<std::pair<size_t, size_t>>> leads_to(const Graph& graph, const std::vector<size_t>& among) {
  std::vector<Flow> behind;
  for (const size_t wait : among) {
    behind.push_back(graph.empty);
    behind.back().block(graph.waits[wait]);
  }
  std::vector<std::vector<std::pair<size_t, size_t>>> next(among.size());
  for (size_t at = 0; at < among.size(); at++)
    for (const size_t absent : graph.waits[among[at]].absent)
      for (size_t i = 0; i < among.size(); i++) {
        const bool held = behind[i].holds(absent) || holds_directly(graph.waits[among[i]], absent);
        if (i != at && held && graph.stances[absent] == Stance::held) next[at].emplace_back(absent, i);
      }
  return next;
}

struct Circle {
  std::vector<size_t> ranks;
  std::vector<const Wait*> through;
};

// The first circle that a walk along those finds.
Circle find_circle(const Graph& graph, const std::vector<size_t>& among) {
  const auto next = leads_to(graph, among);
  enum class Seen : uint8_t { no, on_the_way, done };
  std::vector<Seen> seen(among.size());
  struct Step {
    size_t wait = 0, taken = 0;
  };
  for (size_t start = 0; start < among.size(); start++) {
    std::vector<Step> way{{start, 0}};
    while (!way.empty()) {
      Step& step = way.back();
      seen[step.wait] = Seen::on_the_way;
      if (step.taken == next[step.wait].size()) {
        seen[step.wait] = Seen::done;
        way.pop_back();
        continue;
      }
      const size_t to = next[step.wait][step.taken++].second;
      if (seen[to] == Seen::no) way.push_back({to, 0});
      if (seen[to] != Seen::on_the_way || to == way.back().wait) continue;
      Circle circle;
      auto from = std::find_if(way.begin(), way.end(), [&](const Step& s) { return s.wait == to; });
      for (; from != way.end(); ++from) {
        circle.ranks.push_back(next[from->wait][from->taken - 1].first);
        circle.through.push_back(&graph.waits[among[from->wait]]);
      }
      return circle;
    }
  }
  return {};
}

// A message whose other end is held up by the very group that it belongs to.
const Wait* odd_message(const Graph& graph, const std::vector<size_t>& among) {
  for (const size_t wait : among) {
    if (graph.waits[wait].what != Wait::What::p2p || graph.waits[wait].absent.empty()) continue;
    Flow behind = graph.empty;
    behind.block(graph.waits[wait]);
    if (behind.holds(graph.waits[wait].absent.front())) return &graph.waits[wait];
  }
  return nullptr;
}

// Has the call that one side waits in been made before on a smaller communicator of just those ranks, and never on this
// one? Then it was meant for that.
bool belongs_elsewhere(const Evidence& evidence, const Wait& wait) {
  const Comm& comm = evidence.table.comms[wait.comm];
  const Member* first = member_of(comm, wait.waiting.front());
  const trace::Call* call = first ? first->call_at(wait.seq) : nullptr;
  if (!call) return false;
  const Signature signature = signature_of(*call);
  for (const trace::Call* other : first->collectives)
    if (other->seq < wait.seq && signature_of(*other) == signature) return false;
  for (const Comm& smaller : evidence.table.comms) {
    if (&smaller == &comm || !smaller.complete() || smaller.members.size() != wait.waiting.size()) continue;
    const Member* member = member_of(smaller, wait.waiting.front());
    const bool same = member && std::all_of(wait.waiting.begin(), wait.waiting.end(),
                                            [&](size_t rank) { return member_of(smaller, rank) != nullptr; });
    if (same && std::any_of(member->collectives.begin(), member->collectives.end(), [&](const trace::Call* other) {
          return other->event < call->event && signature_of(*other) == signature;
        }))
      return true;
  }
  return false;
}

Finding blame_circle(const Graph& graph, const std::vector<size_t>& among) {
  constexpr size_t kMost = 64;  // a circle is found among the oldest, if at all
  std::vector<size_t> oldest = among;
  std::stable_sort(oldest.begin(), oldest.end(),
                   [&](size_t a, size_t b) { return graph.waits[a].age_ns > graph.waits[b].age_ns; });
  if (oldest.size() > kMost) oldest.resize(kMost);
  const Evidence& evidence = graph.evidence;
  std::vector<size_t> messages;
  for (const size_t wait : oldest)
    if (graph.waits[wait].what == Wait::What::p2p) messages.push_back(wait);
  Circle circle = find_circle(graph, messages);
  const bool by_messages = !circle.ranks.empty();
  if (!by_messages) circle = find_circle(graph, oldest);
  const std::vector<const Wait*>& through = circle.through;
  Finding finding = blank_finding(evidence, through.empty() ? graph.waits[oldest.front()] : *through.front());
  finding.pending_ns = graph.waits[oldest.front()].age_ns;
  const bool collectives = std::all_of(through.begin(), through.end(),
                                       [](const Wait* wait) { return wait->what == Wait::What::collective; });
  finding.kind = by_messages                          ? Kind::p2p_cycle
                 : through.size() == 2 && collectives ? Kind::order_inversion
                                                      : Kind::cross_communicator_cycle;
  if (const Wait* odd = through.empty() ? odd_message(graph, oldest) : nullptr) {
    finding = blank_finding(evidence, *odd);
    finding.kind = Kind::group_mismatch;
  }
  finding.cycle = std::move(circle.ranks);
  finding.confidence = Confidence::likely;
  finding.doubts.push_back("what the host waited for is told by the stacks and the order of calls alone");
  if (finding.kind == Kind::order_inversion)
    for (const Wait* wait : through) {
      if (!belongs_elsewhere(evidence, *wait)) continue;
      finding = blank_finding(evidence, *wait);
      finding.kind = Kind::wrong_communicator;
      finding.culprits = wait->waiting;
      finding.confidence = Confidence::likely;
      finding.doubts.push_back("that the call belongs on the smaller communicator follows from earlier calls there");
      break;
    }
  for (const size_t wait : among) add_unique(finding.victims, graph.waits[wait].waiting, finding.culprits);
  return finding;
}

// Somebody waits for ranks that wait themselves, and nobody is seen to be missing from what those wait for.
Finding blame_hidden(const Graph& graph, const std::vector<size_t>& among) {
  const Wait* oldest = &graph.waits[among.front()];
  for (const size_t wait : among)
    if (graph.waits[wait].age_ns > oldest->age_ns) oldest = &graph.waits[wait];
  Finding finding = blank_finding(graph.evidence, *oldest);
  finding.kind = Kind::stalled_together;
  finding.confidence = Confidence::possible;
  finding.detail =
      fmt::format("{} {} not made that call, but may be held up as well: nobody is named",
                  ranks_text(graph.evidence.run, oldest->absent), oldest->absent.size() == 1 ? "has" : "have");
  finding.doubts.push_back("what those wait for that have not made the call is not on record");
  for (const size_t wait : among) add_unique(finding.victims, graph.waits[wait].waiting, {});
  return finding;
}

// --- all together
// ------------------------------------------------------------------------------------------------------------

struct Cause {
  size_t wait = 0;
  std::vector<size_t> culprits;
};

// Nobody can tell who is missing from the making of a communicator that lists no members. But where all ranks are held
// up in something and one is not, everything comes down to that one.
std::vector<size_t> only_one_left(const Graph& graph, const Wait& wait) {
  if (wait.candidates.empty()) return {};
  std::vector<size_t> left;
  for (size_t rank = 0; rank < graph.stances.size(); rank++) {
    if (graph.stances[rank] == Stance::hidden) return {};
    if (graph.stances[rank] == Stance::free || departure_of(graph.evidence, wait, rank).final) left.push_back(rank);
  }
  return left.size() == 1 && is_in(wait.candidates, left.front()) && graph.evidence.run.missing.empty()
             ? left
             : std::vector<size_t>{};
}

// Waits that nobody with a trace is missing from, and those that miss somebody who is free or gone.
std::vector<Cause> causes_of(const Graph& graph) {
  std::vector<Cause> causes;
  for (size_t i = 0; i < graph.waits.size(); i++) {
    std::vector<size_t> culprits = culprits_of(graph, graph.waits[i]);
    if (culprits.empty()) culprits = only_one_left(graph, graph.waits[i]);
    if (!culprits.empty() || graph.waits[i].absent.empty()) causes.push_back({i, std::move(culprits)});
  }
  return causes;
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
    for (const Cause& cause : causes_of(graph)) {
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
