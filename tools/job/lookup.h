// SPDX-License-Identifier: MIT
//
// Look-ups that many files need.

#pragma once

#include <algorithm>
#include <array>

#include "interpose/abi/functions.h"
#include "tools/job/match.h"

namespace lockstep {

// nullptr = the rank is no member, as far as its trace says.
inline const Member* member_of(const Comm& comm, size_t rank) {
  const auto found =
      std::find_if(comm.members.begin(), comm.members.end(), [&](const Member& member) { return member.rank == rank; });
  return found == comm.members.end() ? nullptr : &*found;
}

// Of the list of all functions as a table, since jobs have millions of calls. One this build does not know is `local`.
inline abi::FunctionKind kind_of(const trace::Call& call) {
  static const std::array<abi::FunctionKind, 1024> kinds = [] {
    std::array<abi::FunctionKind, 1024> table;
    table.fill(abi::FunctionKind::local);
    for (const abi::FunctionInfo& function : abi::kFunctions)
      if (static_cast<size_t>(function.fn) < table.size()) table[static_cast<size_t>(function.fn)] = function.kind;
    return table;
  }();
  if (call.fn < kinds.size()) return kinds[call.fn];
  const abi::FunctionInfo* info = abi::find_function(call.fn);
  return info ? info->kind : abi::FunctionKind::local;
}

// Where a process holds several ranks, only some of its threads speak for one of them.
inline bool is_its_thread(const Rank& rank, uint32_t tid) {
  return rank.tids.empty() || std::find(rank.tids.begin(), rank.tids.end(), tid) != rank.tids.end();
}

// Is the collective known to wait for its turn on the device? A job that launches faster than the driver answers has
// operations that pass unwatched: behind the last known start the newest is surely watched, and the driver may have
// said from which one on none has started.
inline bool is_unstarted(const Member& member, uint64_t seq) {
  const trace::CommInfo& info = *member.info;
  if (seq >= member.launched || !info.coll_started || seq < *info.coll_started) return false;
  return info.unwatched == 0 || seq + 1 == member.launched || (info.coll_unstarted && seq >= *info.coll_unstarted);
}

}  // namespace lockstep
