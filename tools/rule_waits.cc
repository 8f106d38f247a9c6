// SPDX-License-Identifier: MIT
//
// Waits: what some ranks have begun and others have not.
//
// - a row of a communicator that some members launched and others did not (the first such row of each communicator; the
//   ones after it wait behind it);
// - the making of a communicator in which some members are, and others are not;
// - a send that has no receive at the other end, or the reverse, by their numbers on that edge;
// - behind any of these, ranks that are stuck in a call from which nobody is missing.
//
// Whoever has left a communicator in good order, or ended in good order, was not held up by it.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "interpose/abi/functions.h"
#include "tools/flow.h"
#include "tools/rules.h"

namespace lockstep {
namespace {

using abi::Fn;
using trace::Call;
using trace::CommInfo;
using trace::CommState;
using trace::Time;

bool is_fn(const Call& call, Fn fn) { return call.fn == static_cast<uint16_t>(fn); }

// The last moment at which the member could still be waiting: an abort by a watchdog ends the wait, not the evidence.
Time last_moment(const Evidence& evidence, const Member& member) {
  Time seen = evidence.life(member.rank).seen;
  const CommInfo& info = *member.info;
  const bool aborted = info.state == CommState::aborted || info.state == CommState::revoked;
  if (aborted && info.ended.mono_ns != 0) seen.mono_ns = std::min(seen.mono_ns, info.ended.mono_ns);
  return seen;
}

// Is it still inside ncclCommDestroy or ncclCommFinalize, which wait for what is enqueued?
bool inside_teardown(const Member& member) {
  for (auto at = member.file->calls.rbegin(); at != member.file->calls.rend(); ++at)
    if (at->comm == member.info->serial && (is_fn(*at, Fn::CommDestroy) || is_fn(*at, Fn::CommFinalize)))
      return !at->returned;
  return false;
}

bool left_in_good_order(const Evidence& evidence, const Member& member) {
  if (evidence.life(member.rank).end == End::clean) return true;
  const CommState state = member.info->state;
  return (state == CommState::destroyed || state == CommState::finalized) && !inside_teardown(member);
}

Wait collective_wait(const Evidence& evidence, size_t index) {
  const Comm& comm = evidence.table.comms[index];
  Wait wait;
  wait.comm = index;
  wait.seq = UINT64_MAX;
  for (const Member& member : comm.members) wait.seq = std::min(wait.seq, member.launched);
  for (const Member& member : comm.members) {
    if (member.launched == wait.seq) {
      wait.absent.push_back(member.rank);
      continue;
    }
    Time since;
    const int64_t age = waited(evidence, member, wait.seq, &since);
    if (age <= 0) continue;
    wait.waiting.push_back(member.rank);
    if (age > wait.age_ns) {
      wait.age_ns = age;
      wait.since = since;
    }
  }
  return wait;
}

// A rank that ends takes its unfinished work with it, although it had made the call: the others stay in it.
std::optional<Wait> unfinished_wait(const Evidence& evidence, size_t index) {
  const Comm& comm = evidence.table.comms[index];
  Wait wait;
  wait.comm = index;
  wait.seq = UINT64_MAX;
  for (const Member& member : comm.members) {
    const std::optional<uint64_t>& completed = member.info->coll_completed;
    if (evidence.life(member.rank).end == End::none || !completed || *completed >= member.launched) continue;
    Wait alone;
    alone.comm = index;
    alone.seq = *completed;
    alone.absent = {member.rank};
    // It may have ended before it saw that a row was done which the others have left behind.
    uint64_t others = UINT64_MAX;
    for (const Member& other : comm.members)
      if (other.rank != member.rank && evidence.life(other.rank).end != End::clean && other.info->coll_completed)
        others = std::min(others, *other.info->coll_completed);
    if (others != UINT64_MAX) alone.seq = std::max(alone.seq, others);
    if (alone.seq >= member.launched) continue;
    for (const Member& other : comm.members) {
      Time since;
      const int64_t age = other.rank == member.rank || evidence.life(other.rank).end == End::clean
                              ? 0
                              : waited(evidence, other, alone.seq, &since);
      if (age <= 0) continue;
      alone.waiting.push_back(other.rank);
      if (age > alone.age_ns) alone.age_ns = age, alone.since = since;
    }
    if (alone.waiting.empty() || !departure_of(evidence, alone, member.rank).final || alone.seq >= wait.seq) continue;
    wait = alone;
  }
  return wait.waiting.empty() ? std::nullopt : std::optional<Wait>(std::move(wait));
}

// The same row, which others have not even called.
void miss_as_well(const Wait& unfinished, Wait& wait) {
  for (const size_t rank : unfinished.absent) {
    wait.waiting.erase(std::remove(wait.waiting.begin(), wait.waiting.end(), rank), wait.waiting.end());
    if (std::find(wait.absent.begin(), wait.absent.end(), rank) == wait.absent.end()) wait.absent.push_back(rank);
  }
}

// --- making a communicator
// -------------------------------------------------------------------------------------------------

bool in_the_making(const Member& member) { return member.info->state == CommState::initialising; }

void count_waiter(const Evidence& evidence, const Member& member, Wait& wait) {
  wait.waiting.push_back(member.rank);
  const int64_t age = std::max<int64_t>(1, evidence.life(member.rank).seen.mono_ns - member.info->created.mono_ns);
  if (age <= wait.age_ns) return;
  wait.age_ns = age;
  wait.since = member.info->created;
}

// Ranks with a trace that could be the missing members: all that are not in it, less those that are already in another
// communicator of the same size and turn (siblings: the other tensor-parallel groups).
std::vector<size_t> possible_members(const Evidence& evidence, size_t index) {
  const Comm& comm = evidence.table.comms[index];
  std::set<size_t> taken;
  for (const Member& member : comm.members) taken.insert(member.rank);
  const bool spans_job = comm.nranks >= static_cast<int>(evidence.run.ranks.size());
  for (size_t other = 0; other < evidence.table.comms.size() && !spans_job; other++) {
    const Comm& sibling = evidence.table.comms[other];
    if (other == index || sibling.nranks != comm.nranks || sibling.parent_id != comm.parent_id) continue;
    for (const Member& member : sibling.members) taken.insert(member.rank);
  }
  std::vector<size_t> possible;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++)
    if (!taken.count(rank) && evidence.run.ranks[rank].number >= 0) possible.push_back(rank);
  return possible;
}

std::optional<Wait> init_wait(const Evidence& evidence, size_t index) {
  const Comm& comm = evidence.table.comms[index];
  if (comm.parent_id != 0 || comm.nranks <= 0) return std::nullopt;
  Wait wait;
  wait.what = Wait::What::init;
  wait.comm = index;
  for (const Member& member : comm.members) {
    if (in_the_making(member)) count_waiter(evidence, member, wait);
    if (member.info->state == CommState::failed) wait.absent.push_back(member.rank);
  }
  if (wait.waiting.empty()) return std::nullopt;
  const size_t missing =
      static_cast<size_t>(comm.nranks) - std::min(comm.members.size(), static_cast<size_t>(comm.nranks));
  const std::vector<size_t> possible = possible_members(evidence, index);
  if (possible.size() <= missing) {
    wait.absent.insert(wait.absent.end(), possible.begin(), possible.end());
    wait.traceless = missing - possible.size();
    const bool spans_job = comm.nranks >= evidence.run.world_size;
    if (spans_job && wait.traceless == evidence.run.missing.size()) wait.traceless_numbers = evidence.run.missing;
  } else {
    wait.candidates = possible;
  }
  if (wait.absent.empty() && wait.candidates.empty() && wait.traceless == 0) return std::nullopt;
  return wait;
}

struct Splits {
  uint32_t made = 0;  // splits of this parent the member has called
  const Member* open = nullptr;
};

// How many times each member of a parent has split it, by the children on record and by its calls.
std::map<size_t, Splits> splits_of(const Evidence& evidence, const Comm& parent) {
  std::map<size_t, Splits> by_rank;
  std::unordered_map<const trace::TraceFile*, std::unordered_map<uint32_t, uint32_t>> calls;
  for (const Member& member : parent.members) {
    auto [counted, is_new] = calls.try_emplace(member.file);
    if (is_new)
      for (const Call& call : member.file->calls)
        if ((is_fn(call, Fn::CommSplit) || is_fn(call, Fn::CommShrink)) && !has_failed(call))
          counted->second[call.comm]++;
    Splits& splits = by_rank[member.rank];
    splits.made = counted->second[member.info->serial];
    for (const CommInfo& child : member.file->comms)
      if (child.parent_serial == member.info->serial) splits.made = std::max(splits.made, child.split_count);
  }
  for (const Comm& child : evidence.table.comms) {
    if (child.parent_id != parent.id) continue;
    for (const Member& member : child.members)
      if (in_the_making(member) && by_rank.count(member.rank)) by_rank[member.rank].open = &member;
  }
  return by_rank;
}

std::optional<Wait> split_wait(const Evidence& evidence, size_t index) {
  const Comm& parent = evidence.table.comms[index];
  const std::map<size_t, Splits> splits = splits_of(evidence, parent);
  Wait wait;
  wait.what = Wait::What::split;
  wait.comm = index;
  wait.seq = UINT64_MAX;
  for (const auto& [rank, of] : splits)
    if (of.open) wait.seq = std::min<uint64_t>(wait.seq, std::max<uint32_t>(of.open->info->split_count, 1));
  if (wait.seq == UINT64_MAX) return std::nullopt;
  for (const auto& [rank, of] : splits) {
    if (of.open && of.made == wait.seq) count_waiter(evidence, *of.open, wait);
    if (!of.open && of.made < wait.seq) wait.absent.push_back(rank);
  }
  if (wait.waiting.empty()) return std::nullopt;
  if (parent.nranks > 0)
    wait.traceless =
        static_cast<size_t>(parent.nranks) - std::min(parent.members.size(), static_cast<size_t>(parent.nranks));
  if (wait.absent.empty() && wait.traceless == 0) return std::nullopt;
  if (wait.traceless == evidence.run.missing.size()) wait.traceless_numbers = evidence.run.missing;
  return wait;
}

// --- point to point
// ----------------------------------------------------------------------------------------------------------

bool whole_record(const Member& member) {
  return member.p2p.size() + member.p2p_held + member.p2p_left_out >= member.info->p2p_called;
}

// What one member has put on one edge of its communicator.
struct Half {
  uint64_t made = 0;  // messages so far
  std::vector<std::pair<uint64_t, const Call*>> calls;
};

std::map<EdgeKey, Half> halves_of(size_t index, const Member& member, Fn fn) {
  std::map<EdgeKey, Half> halves;
  const std::vector<uint64_t> numbers = edge_numbers(member);
  for (size_t i = 0; i < member.p2p.size(); i++) {
    if (!is_fn(*member.p2p[i], fn)) continue;
    Half& half = halves[edge_of(index, member, *member.p2p[i])];
    half.calls.emplace_back(numbers[i], member.p2p[i]);
    half.made = std::max(half.made, numbers[i] + 1);
  }
  return halves;
}

// One end has begun more than the other has answered. An end whose ring has lost all of that edge cannot be judged.
void unmatched(const Evidence& evidence, const EdgeKey& edge, const Member& a, const Half& begun, const Member& b,
               const Half* answers, std::vector<Wait>& waits) {
  if (!answers && !whole_record(b)) return;
  const uint64_t answered = answers ? answers->made : 0;
  if (begun.made <= answered || left_in_good_order(evidence, a)) return;
  const Call* first = nullptr;
  for (const auto& [number, call] : begun.calls)
    if (number == answered) first = call;
  if (!first) return;
  Wait wait;
  wait.what = Wait::What::p2p;
  wait.comm = edge.comm;
  wait.edge_from = edge.from;
  wait.edge_to = edge.to;
  wait.seq = answered;
  wait.waiting = {a.rank};
  wait.absent = {b.rank};
  wait.since = first->called;
  wait.age_ns = std::max<int64_t>(1, last_moment(evidence, a).mono_ns - first->called.mono_ns);
  waits.push_back(std::move(wait));
}

void p2p_waits(const Evidence& evidence, size_t index, std::vector<Wait>& waits) {
  const Comm& comm = evidence.table.comms[index];
  std::unordered_map<int, const Member*> by_comm_rank;
  std::unordered_map<size_t, std::map<EdgeKey, Half>> sends, receives;
  for (const Member& member : comm.members) {
    by_comm_rank[member.comm_rank] = &member;
    if (member.p2p.empty()) continue;
    sends[member.rank] = halves_of(index, member, Fn::Send);
    receives[member.rank] = halves_of(index, member, Fn::Recv);
  }
  const auto look = [&](const Member& a, auto& mine, auto& theirs, bool sending) {
    for (const auto& [edge, half] : mine[a.rank]) {
      const auto other = by_comm_rank.find(sending ? edge.to : edge.from);
      if (other == by_comm_rank.end() || other->second->rank == a.rank) continue;
      const auto& answers = theirs[other->second->rank];
      const auto found = answers.find(edge);
      unmatched(evidence, edge, a, half, *other->second, found == answers.end() ? nullptr : &found->second, waits);
    }
  };
  for (const Member& member : comm.members) {
    if (member.p2p.empty()) continue;
    look(member, sends, receives, true);
    look(member, receives, sends, false);
  }
}

// --- held up, and nobody is missing
// --------------------------------------------------------------------------------------------

struct Newest {
  const Call* call = nullptr;
  size_t comm = 0;
};

// The last thing each rank enqueued anywhere.
std::vector<Newest> newest_calls(const Evidence& evidence) {
  std::vector<Newest> newest(evidence.run.ranks.size());
  const auto take = [&](size_t rank, const Call* call, size_t comm) {
    if (!newest[rank].call || call->event > newest[rank].call->event) newest[rank] = {call, comm};
  };
  for (size_t index = 0; index < evidence.table.comms.size(); index++)
    for (const Member& member : evidence.table.comms[index].members) {
      if (!member.collectives.empty()) take(member.rank, member.collectives.back(), index);
      if (!member.p2p.empty()) take(member.rank, member.p2p.back(), index);
    }
  return newest;
}

Wait held_in(const Evidence& evidence, const Newest& newest, std::vector<size_t> ranks) {
  const Comm& comm = evidence.table.comms[newest.comm];
  Wait wait;
  wait.what = is_collective(*newest.call) ? Wait::What::collective : Wait::What::p2p;
  wait.comm = newest.comm;
  wait.seq = newest.call->seq;
  wait.waiting = std::move(ranks);
  wait.since = newest.call->called;
  wait.age_ns = std::max<int64_t>(1, evidence.life(wait.waiting.front()).seen.mono_ns - newest.call->called.mono_ns);
  wait.traceless = static_cast<size_t>(std::max(comm.nranks, 0)) -
                   std::min(comm.members.size(), static_cast<size_t>(std::max(comm.nranks, 0)));
  if (wait.traceless && wait.traceless == evidence.run.missing.size()) wait.traceless_numbers = evidence.run.missing;
  return wait;
}

// A rank that others wait for may itself be stuck in a call nobody with a trace is missing from: a collective that all
// members made, or a message that has its other half. It is held up there, by what nobody can see, and not free to be
// blamed. Such waits have no absent rank. They matter only behind other waits.
void add_stuck_behind(const Evidence& evidence, const std::vector<Finding>& mismatches, std::vector<Wait>& waits) {
  std::set<size_t> accounted;
  Flow flow(evidence);
  for (const Wait& wait : waits) {
    accounted.insert(wait.waiting.begin(), wait.waiting.end());
    flow.block(wait);
  }
  for (const Finding& mismatch : mismatches) flow.block(mismatch);
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++)
    if (flow.holds(rank)) accounted.insert(rank);
  const std::vector<Newest> newest = newest_calls(evidence);
  const auto stuck_in = [&](size_t rank, size_t comm) {
    return newest[rank].call && newest[rank].comm == comm && !accounted.count(rank) && !flow.all_completed(rank) &&
           evidence.life(rank).end != End::clean && is_stuck(evidence, rank);
  };
  for (size_t index = 0; index < evidence.table.comms.size(); index++) {
    const Comm& comm = evidence.table.comms[index];
    std::vector<size_t> together;
    for (const Member& member : comm.members) {
      if (!stuck_in(member.rank, index)) continue;
      const Newest& its = newest[member.rank];
      if (is_p2p(*its.call)) waits.push_back(held_in(evidence, its, {member.rank}));
      if (is_collective(*its.call) && member.launched == comm.members.front().launched) together.push_back(member.rank);
    }
    if (!together.empty() && together.size() == comm.members.size())
      waits.push_back(held_in(evidence, newest[together.front()], together));
  }
}

}  // namespace

namespace {

// A rank that launched far ahead may wait for long for one that works its way towards the call. As long as that one
// makes calls, it is late, not lost: the wait counts from its last.
void reckon_with_progress(const Evidence& evidence, Wait& wait) {
  if (wait.absent.empty()) return;
  int64_t quiet = 0, until = 0;
  for (const size_t rank : wait.waiting) until = std::max(until, evidence.life(rank).seen.wall_ns);
  for (const size_t rank : wait.absent) {
    int64_t its = evidence.quiet(rank);
    if (evidence.life(rank).end != End::none)
      its = std::max(its, until - std::max(evidence.worked[rank].wall_ns, evidence.moved[rank].wall_ns));
    quiet = std::max(quiet, its);
  }
  wait.age_ns = std::min(wait.age_ns, std::max<int64_t>(quiet, 1));
}

}  // namespace

int64_t waited(const Evidence& evidence, const Member& member, uint64_t seq, Time* since) {
  if (member.launched <= seq || left_in_good_order(evidence, member)) return 0;
  if (member.info->coll_completed && *member.info->coll_completed > seq) return 0;
  // The call itself, or the oldest later one still on record: it has waited at least that long.
  const auto at = std::lower_bound(member.collectives.begin(), member.collectives.end(), seq,
                                   [](const Call* call, uint64_t wanted) { return call->seq < wanted; });
  const Time called = at != member.collectives.end() ? (*at)->called : member.file->last_call;
  if (since) *since = called;
  return std::max<int64_t>(1, last_moment(evidence, member).mono_ns - called.mono_ns);
}

std::vector<Wait> find_waits(const Evidence& evidence, const std::vector<Finding>& mismatches) {
  std::vector<Wait> waits;
  for (size_t index = 0; index < evidence.table.comms.size(); index++) {
    Wait wait = collective_wait(evidence, index);
    std::optional<Wait> unfinished = unfinished_wait(evidence, index);
    if (unfinished && unfinished->seq == wait.seq) miss_as_well(*unfinished, wait);
    if (unfinished && unfinished->seq < wait.seq) wait = std::move(*unfinished);
    if (!wait.waiting.empty()) waits.push_back(std::move(wait));
    if (std::optional<Wait> init = init_wait(evidence, index)) waits.push_back(std::move(*init));
    if (std::optional<Wait> split = split_wait(evidence, index)) waits.push_back(std::move(*split));
    p2p_waits(evidence, index, waits);
  }
  for (Wait& wait : waits) reckon_with_progress(evidence, wait);
  if (!waits.empty()) add_stuck_behind(evidence, mismatches, waits);
  return waits;
}

}  // namespace lockstep
