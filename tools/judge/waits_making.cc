// SPDX-License-Identifier: MIT
//
// Waits in the making of a communicator: some of those who are to join it are in the call, and others are not. Who they
// are is known where all ranks are meant, or where it is split from one that exists; else only who could be.

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "tools/judge/wait_parts.h"

namespace lockstep {

using abi::Fn;
using trace::Call;
using trace::CommInfo;
using trace::CommState;

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

}  // namespace lockstep
