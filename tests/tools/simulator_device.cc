// SPDX-License-Identifier: MIT
//
// The streams of the machine: what starts, how long it takes, and when it can never end.

#include <algorithm>

#include "tests/tools/simulator_machine.h"

namespace lockstep::test {

bool Machine::step_stream(int rank, std::deque<Kernel>& queue) {
  if (queue.empty() || host(rank).ended) return false;  // its work ends with it
  Kernel& front = queue.front();
  if (!front.started) {
    start(rank, front);
    return true;
  }
  if (front.done_at == kNever) {
    const double seconds = duration(front);
    if (seconds == kNever) return false;
    front.done_at = now_ + seconds;
    return true;
  }
  if (front.done_at > now_) return false;
  if (front.comm >= 0 && front.pieces.empty()) info(rank, front.comm).coll_completed = front.seq + 1;
  if (!front.pieces.empty()) {
    CommInfo& at = info(rank, front.comm);
    at.p2p_completed = at.p2p_completed.value_or(0) + front.pieces.size();
  }
  queue.pop_front();
  return true;
}

void Machine::start(int rank, Kernel& kernel) {
  kernel.started = true;
  if (kernel.comm < 0) return;
  if (kernel.pieces.empty()) {
    rows_[{kernel.comm, kernel.seq}].push_back(kernel.act);
    info(rank, kernel.comm).coll_started = kernel.seq + 1;
  }
  for (const Piece& piece : kernel.pieces) {
    Halves& both = halves_[piece.edge];
    (piece.send ? both.sent : both.received) = piece.act;
    both.with.insert(both.with.end(), kernel.pieces.begin(), kernel.pieces.end());
  }
}

// A group is one piece of work at both ends: it waits for what the groups that it exchanges messages with wait for.
bool Machine::all_paired(const std::vector<Piece>& pieces) {
  std::vector<Piece> open = pieces;
  std::set<Edge> seen;
  while (!open.empty()) {
    const Edge edge = open.back().edge;
    open.pop_back();
    if (!seen.insert(edge).second) continue;
    const Halves& both = halves_[edge];
    // A receive that is too small cuts the message, one that is too large waits for the rest.
    if (!both.sent || !both.received || both.received->count > both.sent->count) return false;
    open.insert(open.end(), both.with.begin(), both.with.end());
  }
  return true;
}

// How long it takes from now on; never, while somebody is missing.
double Machine::duration(const Kernel& kernel) {
  if (kernel.comm < 0) return kernel.act->seconds;
  if (!kernel.pieces.empty()) return all_paired(kernel.pieces) ? kernel.act->seconds : kNever;
  const std::vector<const Act*>& row = rows_[{kernel.comm, kernel.seq}];
  if (row.size() < comm(kernel.comm).ranks.size()) return kNever;
  double longest = 0;
  for (const Act* act : row) {
    longest = std::max(longest, act->seconds);
    const Act& first = *row.front();
    const bool alike = act->fn == first.fn && act->count == first.count && act->dtype == first.dtype &&
                       act->redop == first.redop && act->peer == first.peer;
    if (!alike && mixed(seed_, kernel.seq + static_cast<uint64_t>(kernel.comm) * 1000) % 2) return kNever;
  }
  return longest;
}

}  // namespace lockstep::test
