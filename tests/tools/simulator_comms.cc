// SPDX-License-Identifier: MIT
//
// How ranks join a communicator, fail to, and leave it.

#include <algorithm>

#include "tests/tools/simulator_machine.h"

namespace lockstep::test {

void Machine::make_info(int rank, int index, CommState state) {
  TraceFile& at = file(rank);
  const std::vector<int>& ranks = comm(index).ranks;
  CommInfo made;
  made.serial = static_cast<uint32_t>(at.comms.size() + 1);
  made.state = state;
  made.id = sim_comm_id(index);
  if (comm(index).parent >= 0) {
    const CommInfo& parent = info(rank, comm(index).parent);
    made.parent_id = parent.id;
    made.parent_serial = parent.serial;
    made.split_count = static_cast<uint32_t>(comm(index).split);
    made.color = comm(index).color;
  } else {
    made.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    made.nranks = static_cast<int>(ranks.size());
  }
  made.name = index ? "c" + std::to_string(index) : "";
  made.created = time_of(rank);
  made.creator_tid = at.threads.front().tid;
  host(rank).info_of[index] = at.comms.size();
  at.comms.push_back(std::move(made));
}

bool Machine::fail_to_join(int rank, const Act& act) {
  const bool together = act.count > 0;
  if (!host(rank).open_call) {
    reach(rank, act.event);
    make_info(rank, act.comm, CommState::initialising);
    record(rank, Fn::CommInitRank, nullptr).new_comm = file(rank).comms.back().serial;
    leave_open(rank);
    joined_[static_cast<size_t>(act.comm)].insert(rank);
  }
  if (together && !all_joined(act.comm)) return false;
  file(rank).calls.back().result = act.peer;
  file(rank).comms.back().state = CommState::failed;
  come_back(rank);
  if (!together) joined_[static_cast<size_t>(act.comm)].erase(rank);
  return true;
}

bool Machine::join(int rank, const Act& act) {
  auto& joined = joined_[static_cast<size_t>(act.comm)];
  if (!host(rank).open_call) {
    reach(rank, act.event);
    make_info(rank, act.comm, CommState::initialising);
    const CommInfo& made = file(rank).comms.back();
    const bool is_split = comm(act.comm).parent >= 0;
    Call& call = record(rank, is_split ? Fn::CommSplit : Fn::CommInitRank, nullptr);
    call.new_comm = made.serial;
    if (is_split) call.comm = made.parent_serial;
    leave_open(rank);
    joined.insert(rank);
  }
  if (!all_joined(act.comm)) return false;
  const std::vector<int>& ranks = comm(act.comm).ranks;
  info(rank, act.comm).rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  info(rank, act.comm).nranks = static_cast<int>(ranks.size());
  info(rank, act.comm).state = CommState::live;
  info(rank, act.comm).ready = time_of(rank);
  come_back(rank);
  return true;
}

// A split waits for all ranks of the parent, whatever part they go to.
bool Machine::all_joined(int index) const {
  const SimComm& of = comm(index);
  if (of.parent < 0) return joined_[static_cast<size_t>(index)].size() == of.ranks.size();
  size_t joined = 0;
  for (size_t other = 0; other < joined_.size(); other++)
    if (schedule_.comms[other].parent == of.parent && schedule_.comms[other].split == of.split)
      joined += joined_[other].size();
  return joined == comm(of.parent).ranks.size();
}

bool Machine::tear_down(int rank, const Act& act) {
  if (!host(rank).open_call) {
    record(rank, Fn::CommDestroy, nullptr).comm = info(rank, act.comm).serial;
    leaving_[act.comm].insert(rank);
    if (act.peer == 1) leave_open(rank);
  }
  if (act.peer == 1 && leaving_[act.comm].size() < comm(act.comm).ranks.size()) return false;
  if (host(rank).open_call) come_back(rank);
  info(rank, act.comm).state = CommState::destroyed;
  info(rank, act.comm).ended = time_of(rank);
  return true;
}

}  // namespace lockstep::test
