// SPDX-License-Identifier: MIT
#include "tools/judge/flow.h"

#include <algorithm>

#include "interpose/abi/functions.h"

namespace lockstep {

using trace::Call;

EdgeKey edge_of(size_t comm, const Member& member, const Call& call) {
  const bool sends = call.fn == static_cast<uint16_t>(abi::Fn::Send);
  return {comm, sends ? member.comm_rank : call.peer, sends ? call.peer : member.comm_rank};
}

std::vector<uint64_t> edge_numbers(const Member& member) {
  std::vector<uint64_t> numbers;
  std::map<std::pair<uint16_t, int>, uint64_t> counted;
  for (const Call* call : member.p2p) {
    uint64_t& next = counted[{call->fn, call->peer}];
    if (call->seq != UINT64_MAX) next = call->seq;
    numbers.push_back(next++);
  }
  return numbers;
}

Flow::Flow(const Evidence& evidence) : evidence_(evidence) {
  const Table& table = evidence.table;
  const size_t ranks = evidence.run.ranks.size();
  auto layout = std::make_shared<Layout>();
  layout->streams.resize(ranks);
  layout->stream_of.resize(ranks);
  layout->members.resize(ranks);
  layout->unfinished.resize(ranks);
  layout->seen.resize(ranks);
  layout->rows.resize(table.comms.size());
  floor_.assign(table.comms.size(), UINT64_MAX);
  Done done(ranks);
  for (size_t index = 0; index < table.comms.size(); index++) {
    layout->rows[index].resize(table.comms[index].members.size());
    for (size_t at = 0; at < table.comms[index].members.size(); at++)
      add_ops_of(table.comms[index], index, at, *layout, done);
  }
  stuck_.resize(ranks);
  for (size_t rank = 0; rank < ranks; rank++) {
    for (const auto& [handle, stream] : layout->stream_of[rank]) {
      const auto until = done[rank].find(handle);
      if (until == done[rank].end()) continue;
      Stream& ops = layout->streams[rank][stream];
      ops.erase(std::remove_if(ops.begin(), ops.end(), [&](const Op& op) { return op.event <= until->second; }),
                ops.end());
    }
    settle(rank, *layout);
    for (const Stream& stream : layout->streams[rank]) stuck_[rank].push_back(stream.size());
  }
  for (auto& members : layout->rows)
    for (auto& of : members)
      std::stable_sort(of.begin(), of.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  layout_ = std::move(layout);
}

void Flow::add_ops_of(const Comm& comm, size_t index, size_t at, Layout& layout, Done& done) {
  const Member& member = comm.members[at];
  layout.members[member.rank].push_back(&member);
  const auto add = [&](const Call& call, Op op) {
    layout.seen[member.rank]++;
    op.event = call.event, op.comm = index, op.member = at, op.group = call.group;
    std::vector<Stream>& streams = layout.streams[member.rank];
    const auto [place, is_new] = layout.stream_of[member.rank].try_emplace(call.stream, streams.size());
    if (is_new) streams.emplace_back();
    streams[place->second].push_back(op);
  };
  const std::optional<uint64_t>& completed = member.info->coll_completed;
  const uint64_t p2p_done = member.info->p2p_completed.value_or(0) + member.p2p_held;
  layout.unfinished[member.rank] += member.launched - std::min(member.launched, completed.value_or(0)) +
                                    member.info->p2p_called - std::min(member.info->p2p_called, p2p_done);
  for (const Call* call : member.collectives) {
    if (call->seq >= member.launched) continue;
    if (completed && call->seq < *completed) {
      uint64_t& newest = done[member.rank][call->stream];
      newest = std::max(newest, call->event);
      continue;
    }
    Op op;
    op.seq = call->seq;
    add(*call, op);
  }
  const std::vector<uint64_t> numbers = edge_numbers(member);
  const uint64_t lost =
      member.info->p2p_called - std::min<uint64_t>(member.info->p2p_called, member.p2p.size() + member.p2p_held);
  for (size_t i = 0; i < member.p2p.size(); i++) {
    if (lost + i < member.info->p2p_completed.value_or(0)) continue;
    Op op;
    op.message = true, op.edge = edge_of(index, member, *member.p2p[i]), op.number = numbers[i];
    add(*member.p2p[i], op);
  }
}

// Puts the operations of each stream in order and notes where each one is.
void Flow::settle(size_t rank, Layout& layout) {
  for (size_t stream = 0; stream < layout.streams[rank].size(); stream++) {
    Stream& of = layout.streams[rank][stream];
    std::stable_sort(of.begin(), of.end(), [](const Op& a, const Op& b) { return a.event < b.event; });
    for (size_t at = 0; at < of.size(); at++) {
      const Op& op = of[at];
      if (op.message) {
        layout.messages[op.edge][op.number].push_back({rank, stream, at});
      } else {
        layout.rows[op.comm][op.member].emplace_back(op.seq, Place{rank, stream, at});
      }
    }
  }
}

void Flow::lower_row(size_t comm, uint64_t seq) {
  if (seq >= floor_[comm]) return;
  floor_[comm] = seq;
  for (const auto& of : layout_->rows[comm]) {
    const auto first = std::lower_bound(of.begin(), of.end(), seq,
                                        [](const auto& row, uint64_t wanted) { return row.first < wanted; });
    if (first != of.end()) lowered_.push_back(first->second);
  }
}

const std::vector<Flow::Place>& Flow::halves_of(const EdgeKey& edge, uint64_t number) const {
  static const std::vector<Place> none;
  const auto found = layout_->messages.find(edge);
  if (found == layout_->messages.end()) return none;
  const auto halves = found->second.find(number);
  return halves == found->second.end() ? none : halves->second;
}

void Flow::lower_edge(const EdgeKey& edge, uint64_t number) {
  const std::vector<Place>& halves = halves_of(edge, number);
  lowered_.insert(lowered_.end(), halves.begin(), halves.end());
}

void Flow::lower(const Place& place) {
  const Stream& ops = layout_->streams[place.rank][place.stream];
  size_t& stuck = stuck_[place.rank][place.stream];
  if (place.at >= stuck) return;
  size_t from = place.at;
  // Messages of one group are one piece of work.
  while (ops[from].message && ops[from].group && from > 0 && ops[from - 1].group == ops[from].group &&
         ops[from - 1].message)
    from--;
  const size_t until = stuck;
  stuck = from;
  for (size_t at = from; at < until; at++) {
    if (ops[at].message) {
      lower_edge(ops[at].edge, ops[at].number);
    } else {
      lower_row(ops[at].comm, ops[at].seq);
    }
  }
}

void Flow::drain() {
  while (!lowered_.empty()) {
    const Place place = lowered_.back();
    lowered_.pop_back();
    lower(place);
  }
}

void Flow::block(const Wait& wait) {
  if (wait.what == Wait::What::collective) return block_row(wait.comm, wait.seq);
  if (wait.what != Wait::What::p2p || wait.edge_from < 0) return;
  block_message({wait.comm, wait.edge_from, wait.edge_to}, wait.seq);
}

void Flow::block_message(const EdgeKey& edge, uint64_t number) {
  lower_edge(edge, number);
  drain();
}

EdgeKey edge_of(const Table& table, const Finding& mismatch) {
  EdgeKey edge{*mismatch.comm};
  for (const Member& member : table.comms[edge.comm].members) {
    if (member.rank == mismatch.message->rank) edge.from = member.comm_rank;
    if (mismatch.message->peer && member.rank == *mismatch.message->peer) edge.to = member.comm_rank;
  }
  return edge;
}

void Flow::block(const Finding& mismatch) {
  if (!mismatch.comm || mismatch.severity != Severity::error || !mismatch.begun) return;
  if (mismatch.seq) return block_row(*mismatch.comm, *mismatch.seq);
  if (!mismatch.message || !mismatch.message->peer || !mismatch.may_hang) return;
  block_message(edge_of(evidence_.table, mismatch), mismatch.message->number);
}

void Flow::block_row(size_t comm, uint64_t seq) {
  lower_row(comm, seq);
  drain();
}

bool Flow::holds(size_t rank) const {
  for (size_t stream = 0; stream < stuck_[rank].size(); stream++)
    if (stuck_[rank][stream] < layout_->streams[rank][stream].size()) return true;
  return false;
}

bool Flow::holds_row(size_t comm, uint64_t seq) const { return seq >= floor_[comm]; }

bool Flow::is_clear_before(size_t rank, size_t comm, uint64_t seq) const {
  if (layout_->seen[rank] < layout_->unfinished[rank])
    return false;  // the ring has lost something that may be in front of it
  for (const Stream& ops : layout_->streams[rank]) {
    const auto found = std::find_if(ops.begin(), ops.end(),
                                    [&](const Op& op) { return !op.message && op.comm == comm && op.seq == seq; });
    if (found != ops.end()) return found == ops.begin();
  }
  return false;
}

bool Flow::is_behind_row(const EdgeKey& edge, uint64_t number) const {
  const std::vector<Place>& halves = halves_of(edge, number);
  const auto is_open_row = [&](const Op& op) {
    return !op.message && evidence_.table.comms[op.comm].members[op.member].info->coll_completed;
  };
  return std::any_of(halves.begin(), halves.end(), [&](const Place& place) {
    const Stream& ops = layout_->streams[place.rank][place.stream];
    return std::any_of(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(place.at), is_open_row);
  });
}

bool Flow::is_one_of_several(const EdgeKey& edge, uint64_t number) const {
  const std::vector<Place>& halves = halves_of(edge, number);
  return std::any_of(halves.begin(), halves.end(), [&](const Place& place) {
    const Stream& ops = layout_->streams[place.rank][place.stream];
    const auto goes_with_it = [&](const Op& other) {
      return other.message && other.group && other.group == ops[place.at].group;
    };
    return (place.at > 0 && goes_with_it(ops[place.at - 1])) ||
           (place.at + 1 < ops.size() && goes_with_it(ops[place.at + 1]));
  });
}

bool Flow::all_completed(size_t rank) const {
  // What is known to have completed was left out.
  const std::vector<Stream>& streams = layout_->streams[rank];
  const std::vector<const Member*>& members = layout_->members[rank];
  return std::all_of(streams.begin(), streams.end(), [](const Stream& ops) { return ops.empty(); }) &&
         std::all_of(members.begin(), members.end(), [](const Member* member) {
           const trace::CommInfo& info = *member->info;
           return info.coll_completed.value_or(0) >= member->launched &&
                  info.p2p_completed.value_or(0) + member->p2p_held >= info.p2p_called;
         });
}

std::vector<std::vector<Flow::InLine>> Flow::in_line(size_t rank, size_t most) const {
  const bool known = std::all_of(layout_->members[rank].begin(), layout_->members[rank].end(),
                                 [](const Member* member) { return member->info->coll_completed.has_value(); });
  std::vector<std::vector<InLine>> lines;
  for (const Stream& ops : layout_->streams[rank]) {
    const size_t skipped = known || ops.size() <= most ? 0 : ops.size() - most;
    std::vector<InLine>& line = lines.emplace_back();
    for (size_t at = skipped; at < ops.size() && line.size() < most; at++) {
      const Op& op = ops[at];
      line.push_back({op.comm, op.message ? op.number : op.seq, op.message, op.edge, op.group});
    }
  }
  return lines;
}

}  // namespace lockstep
