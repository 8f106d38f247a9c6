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
  uint64_t open = UINT64_MAX;  // the first that is known not to have completed
};

std::map<EdgeKey, Half> halves_of(size_t index, const Member& member, Fn fn) {
  std::map<EdgeKey, Half> halves;
  const std::vector<uint64_t> numbers = edge_numbers(member);
  const uint64_t known = member.p2p.size() + member.p2p_held;
  const uint64_t lost = member.info->p2p_called - std::min<uint64_t>(member.info->p2p_called, known);
  for (size_t i = 0; i < member.p2p.size(); i++) {
    if (!is_fn(*member.p2p[i], fn)) continue;
    Half& half = halves[edge_of(index, member, *member.p2p[i])];
    half.calls.emplace_back(numbers[i], member.p2p[i]);
    half.made = std::max(half.made, numbers[i] + 1);
    if (member.info->p2p_completed && lost + i >= *member.info->p2p_completed)
      half.open = std::min(half.open, numbers[i]);
  }
  return halves;
}

std::optional<Wait> wait_for(const Evidence& evidence, const EdgeKey& edge, const Member& a, const Half& begun,
                             const Member& b, uint64_t number) {
  const auto first =
      std::find_if(begun.calls.begin(), begun.calls.end(), [&](const auto& call) { return call.first == number; });
  if (first == begun.calls.end()) return std::nullopt;
  Wait wait;
  wait.what = Wait::What::p2p;
  wait.comm = edge.comm;
  wait.edge_from = edge.from;
  wait.edge_to = edge.to;
  wait.seq = number;
  wait.waiting = {a.rank};
  wait.absent = {b.rank};
  wait.since = first->second->called;
  wait.age_ns = std::max<int64_t>(1, last_moment(evidence, a).mono_ns - wait.since.mono_ns);
  return wait;
}

// One end has begun more than the other has answered. An end whose ring has lost all of that edge cannot be judged.
void unmatched(const Evidence& evidence, const EdgeKey& edge, const Member& a, const Half& begun, const Member& b,
               const Half* answers, std::vector<Wait>& waits) {
  if (!answers && !whole_record(b)) return;
  const uint64_t answered = answers ? answers->made : 0;
  if (begun.made <= answered || left_in_good_order(evidence, a)) return;
  if (std::optional<Wait> wait = wait_for(evidence, edge, a, begun, b, answered)) waits.push_back(std::move(*wait));
}

// A rank that ends takes its unfinished messages with it, although it had made the call: the other end stays in it.
void unfinished(const Evidence& evidence, const EdgeKey& edge, const Member& a, const Half& begun, const Member& b,
                const Half* answers, std::vector<Wait>& waits) {
  if (!answers || evidence.life(b.rank).end == End::none || left_in_good_order(evidence, a)) return;
  const uint64_t number = std::max(begun.open, answers->open);
  if (number >= begun.made || number >= answers->made) return;
  std::optional<Wait> wait = wait_for(evidence, edge, a, begun, b, number);
  if (!wait || !departure_of(evidence, *wait, b.rank).final) return;
  wait->answered = true;
  waits.push_back(std::move(*wait));
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
      const Half* its = found == answers.end() ? nullptr : &found->second;
      unmatched(evidence, edge, a, half, *other->second, its, waits);
      unfinished(evidence, edge, a, half, *other->second, its, waits);
    }
  };
  for (const Member& member : comm.members) {
    if (member.p2p.empty()) continue;
    look(member, sends, receives, true);
    look(member, receives, sends, false);
  }
}

}  // namespace lockstep
