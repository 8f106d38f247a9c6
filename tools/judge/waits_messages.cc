// SPDX-License-Identifier: MIT
//
// Messages of which one end has begun more than the other has answered, by their numbers on that edge.

#include <algorithm>
#include <map>
#include <unordered_map>

#include "tools/judge/flow.h"
#include "tools/judge/wait_parts.h"

namespace lockstep {

using abi::Fn;
using trace::Call;

namespace {

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

}  // namespace

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

}  // namespace lockstep
