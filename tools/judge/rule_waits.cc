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

#include "tools/judge/wait_parts.h"

namespace lockstep {

using abi::Fn;
using trace::CommInfo;
using trace::CommState;
using trace::Time;

Time last_moment(const Evidence& evidence, const Member& member) {
  Time seen = evidence.life(member.rank).seen;
  const CommInfo& info = *member.info;
  const bool aborted = info.state == CommState::aborted || info.state == CommState::revoked;
  if (aborted && info.ended.mono_ns != 0) seen.mono_ns = std::min(seen.mono_ns, info.ended.mono_ns);
  return seen;
}

namespace {

// Is it still inside ncclCommDestroy or ncclCommFinalize, which wait for what is enqueued?
bool inside_teardown(const Member& member) {
  for (auto at = member.file->calls.rbegin(); at != member.file->calls.rend(); ++at)
    if (at->comm == member.info->serial && (is_fn(*at, Fn::CommDestroy) || is_fn(*at, Fn::CommFinalize)))
      return !at->returned;
  return false;
}

}  // namespace

bool left_in_good_order(const Evidence& evidence, const Member& member) {
  if (evidence.life(member.rank).end == End::clean) return true;
  const CommState state = member.info->state;
  return (state == CommState::destroyed || state == CommState::finalized) && !inside_teardown(member);
}

namespace {

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
                                   [](const trace::Call* call, uint64_t wanted) { return call->seq < wanted; });
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
  if (!waits.empty() || !mismatches.empty()) add_started_by_all(evidence, mismatches, waits);
  if (!waits.empty()) add_stuck_behind(evidence, mismatches, waits);
  return waits;
}

}  // namespace lockstep
