// SPDX-License-Identifier: MIT
#include "tools/judge/wait_graph.h"

#include <algorithm>

#include "tools/job/lookup.h"
#include "tools/judge/circle.h"

namespace lockstep {
namespace {

bool is_in(const std::vector<size_t>& ranks, size_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool is_in_call(const Evidence& evidence, size_t rank) {
  const Rank& who = evidence.run.ranks[rank];
  const auto& threads = evidence.file(rank).threads;
  return std::any_of(threads.begin(), threads.end(), [&](const trace::ThreadInfo& thread) {
    return thread.open_call && is_its_thread(who, thread.tid);
  });
}

}  // namespace

bool is_open_to_all(const Wait& wait) { return wait.absent.empty() && !wait.candidates.empty(); }

bool holds_directly(const Wait& wait, size_t rank) {
  const bool making = wait.what == Wait::What::init || wait.what == Wait::What::split;
  return (making || wait.absent.empty()) && is_in(wait.waiting, rank);
}

namespace {

std::vector<Stance> stances_of(const Evidence& evidence, const std::vector<Wait>& waits,
                               const std::vector<Finding>& mismatches, const Flow& empty,
                               const std::vector<Sits>& all_sit) {
  Flow all = empty;
  for (const Wait& wait : waits) all.block(wait);
  for (const Finding& mismatch : mismatches) all.block(mismatch);
  std::vector<bool> direct(evidence.run.ranks.size());
  for (const Wait& wait : waits)
    for (const size_t rank : wait.waiting)
      if (holds_directly(wait, rank)) direct[rank] = true;
  std::vector<Stance> stances;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) {
    const Sits sits = all_sit[rank];
    const bool stuck = direct[rank] || all.holds(rank);
    const bool done = !stuck && empty.all_completed(rank);
    stances.push_back(sits == Sits::elsewhere || (done && sits == Sits::unknown) ? Stance::free
                      : stuck                                                    ? Stance::held
                      : done && !is_in_call(evidence, rank)                      ? Stance::own
                                                                                 : Stance::hidden);
  }
  return stances;
}

}  // namespace

Graph graph_of(const Evidence& evidence, const std::vector<Wait>& waits, const Explained& explained,
               const std::vector<Finding>& mismatches, const Flow& empty) {
  Graph graph{evidence, waits, explained, empty, {}, {}};
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) graph.sits.push_back(where_it_sits(evidence, rank));
  graph.stances = stances_of(evidence, waits, mismatches, empty, graph.sits);
  return graph;
}

std::vector<size_t> stuck_in(const Graph& graph, const Flow& held, int64_t at_least_ns) {
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < graph.sits.size(); rank++)
    if (graph.sits[rank] == Sits::waiting && graph.evidence.quiet(rank) >= at_least_ns && held.holds(rank))
      ranks.push_back(rank);
  return ranks;
}

// --- causes

namespace {

// On a communicator whose calls differed nearly everything follows from that; but a rank that is alive and seen to sit
// outside NCCL has also stayed away from this call.
std::vector<size_t> culprits_of(const Graph& graph, const Wait& wait) {
  const auto differs = graph.explained.find(wait.comm);
  const bool is_explained =
      wait.what == Wait::What::collective && differs != graph.explained.end() && wait.seq >= differs->second;
  std::vector<size_t> ranks;
  for (const size_t rank : wait.absent) {
    const Departure departure = departure_of(graph.evidence, wait, rank);
    const bool free = graph.stances[rank] == Stance::free || graph.stances[rank] == Stance::own;
    const bool stayed_away = departure.kind == Kind::missing_call && free;
    if (is_explained ? stayed_away : departure.final || free) ranks.push_back(rank);
  }
  return ranks;
}

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

}  // namespace

std::vector<Cause> causes_of(const Graph& graph) {
  std::vector<Cause> causes;
  for (size_t i = 0; i < graph.waits.size(); i++) {
    std::vector<size_t> culprits = culprits_of(graph, graph.waits[i]);
    if (culprits.empty()) culprits = only_one_left(graph, graph.waits[i]);
    if (!culprits.empty() || graph.waits[i].absent.empty()) causes.push_back({i, std::move(culprits)});
  }
  return causes;
}

// --- what follows from them

void Downstream::add(size_t wait) {
  if (taken_[wait]) return;
  taken_[wait] = true;
  flow_.block(graph_.waits[wait]);
}

void Downstream::settle() {
  for (bool grew = true; grew;) {
    grew = false;
    for (size_t i = 0; i < graph_.waits.size(); i++) {
      if (taken_[i] || !follows(graph_.waits[i])) continue;
      add(i);
      grew = true;
    }
  }
}

bool Downstream::follows(const Wait& wait) const {
  if (wait.what == Wait::What::collective && flow_.holds_row(wait.comm, wait.seq)) return true;
  const auto is_held = [&](size_t rank) {
    return graph_.stances[rank] == Stance::held && (flow_.holds(rank) || is_directly_held(rank));
  };
  if (is_open_to_all(wait)) return std::all_of(wait.candidates.begin(), wait.candidates.end(), is_held);
  return std::any_of(wait.absent.begin(), wait.absent.end(), is_held);
}

bool Downstream::is_directly_held(size_t rank) const {
  for (size_t i = 0; i < graph_.waits.size(); i++)
    if (taken_[i] && holds_directly(graph_.waits[i], rank)) return true;
  return false;
}

// --- circles

namespace {

// Which of these waits each of them comes down to: those that hold a rank it misses.
std::vector<std::vector<Edge>> leads_to(const Graph& graph, const std::vector<size_t>& among) {
  std::vector<Flow> behind;
  for (const size_t wait : among) {
    behind.push_back(graph.empty);
    behind.back().block(graph.waits[wait]);
  }
  std::vector<std::vector<Edge>> next(among.size());
  for (size_t at = 0; at < among.size(); at++)
    for (const size_t absent : graph.waits[among[at]].absent)
      for (size_t i = 0; i < among.size(); i++) {
        const bool held = behind[i].holds(absent) || holds_directly(graph.waits[among[i]], absent);
        if (i != at && held && graph.stances[absent] == Stance::held) next[at].push_back({i, absent});
      }
  return next;
}

}  // namespace

Circle find_circle(const Graph& graph, const std::vector<size_t>& among) {
  Circle circle;
  for (const OnCircle& point : first_circle(leads_to(graph, among))) {
    circle.ranks.push_back(point.rank);
    circle.through.push_back(&graph.waits[among[point.at]]);
  }
  return circle;
}

const Wait* odd_message(const Graph& graph, const std::vector<size_t>& among) {
  for (const size_t wait : among) {
    const Wait& message = graph.waits[wait];
    if (message.what != Wait::What::p2p || message.absent.empty()) continue;
    if (!graph.empty.is_one_of_several({message.comm, message.edge_from, message.edge_to}, message.seq)) continue;
    Flow behind = graph.empty;
    behind.block(message);
    if (behind.holds(message.absent.front())) return &message;
  }
  return nullptr;
}

}  // namespace lockstep
