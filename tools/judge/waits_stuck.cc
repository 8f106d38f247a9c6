// SPDX-License-Identifier: MIT
//
// Ranks that are held up, and nobody is missing from what holds them.

#include <algorithm>
#include <set>

#include "tools/judge/flow.h"
#include "tools/judge/wait_parts.h"

namespace lockstep {

using trace::Call;

namespace {

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

// Has anybody ended, or been stopped, who is in it? Then it is known why it does not get on.
bool lacks_nobody(const Evidence& evidence, const Wait& wait) {
  return std::all_of(wait.waiting.begin(), wait.waiting.end(), [&](size_t rank) {
    return evidence.stopped(rank) == Stopped::no && evidence.life(rank).end != End::clean &&
           !departure_of(evidence, wait, rank).final;
  });
}

// The first row that no member has completed although all have started it: nothing of NCCL's is in front of it.
std::optional<Wait> started_by_all(const Evidence& evidence, size_t index) {
  const Comm& comm = evidence.table.comms[index];
  uint64_t row = 0, started = UINT64_MAX;
  for (const Member& member : comm.members) {
    if (!member.info->coll_started || !member.info->coll_completed) return std::nullopt;
    row = std::max(row, *member.info->coll_completed);
    started = std::min(started, *member.info->coll_started);
  }
  if (!comm.complete() || row >= started) return std::nullopt;
  Wait wait;
  wait.comm = index;
  wait.seq = row;
  for (const Member& member : comm.members) {
    trace::Time since;
    const int64_t age = std::min(waited(evidence, member, row, &since), evidence.quiet(member.rank));
    wait.waiting.push_back(member.rank);
    if (age > wait.age_ns) wait.age_ns = age, wait.since = since;
  }
  if (wait.age_ns < evidence.threshold_ns || !lacks_nobody(evidence, wait)) return std::nullopt;
  return wait;
}

}  // namespace

void add_started_by_all(const Evidence& evidence, const std::vector<Finding>& mismatches, std::vector<Wait>& waits) {
  for (size_t index = 0; index < evidence.table.comms.size(); index++) {
    std::optional<Wait> wait = started_by_all(evidence, index);
    const auto explains = [&](const Finding& mismatch) {
      return mismatch.seq && mismatch.comm == index && *mismatch.seq <= wait->seq;
    };
    if (wait && std::none_of(mismatches.begin(), mismatches.end(), explains)) waits.push_back(std::move(*wait));
  }
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

}  // namespace lockstep
