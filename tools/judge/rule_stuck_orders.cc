// SPDX-License-Identifier: MIT
//
// Circles among what has been launched. Nobody is missing anywhere, and still nothing completes: on one stream a rank
// has the one operation before the other, on one of its streams another rank has the other before the one, so that
// neither ever has all it needs. The same goes for messages, and for circles through more than two operations.
//
// Operations are the points of a graph, and what comes next on a stream waits for what is before it. Messages of one
// group on a communicator are one piece of work, hence one point.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tools/job/lookup.h"
#include "tools/judge/circle.h"
#include "tools/judge/flow.h"
#include "tools/judge/rules.h"

namespace lockstep {
namespace {

using trace::Call;

constexpr size_t kInLine = 16, kRanks = 1024;

class Orders {
 public:
  void add(size_t rank, const std::vector<Flow::InLine>& line) {
    std::optional<size_t> before;
    uint32_t group = 0;
    for (const Flow::InLine& op : line) {
      size_t at = point_of(op);
      if (before && op.message && op.group && op.group == group) {
        at = join(*before, at);
      } else if (before) {
        next_[root_of(*before)].push_back({at, rank});
      }
      before = at;
      group = op.message ? op.group : 0;
    }
  }

  // The points of a circle, and the ranks that have each of them before the next; empty = there is none.
  struct Circle {
    std::vector<const Flow::InLine*> points;
    std::vector<size_t> ranks;
  };
  Circle find() {
    std::vector<std::vector<Edge>> next(ops_.size());
    for (size_t i = 0; i < ops_.size(); i++)
      for (const Edge& each : next_[i])
        if (root_of(i) != root_of(each.to)) next[root_of(i)].push_back({root_of(each.to), each.rank});
    Circle circle;
    for (const OnCircle& point : first_circle(next)) {
      circle.points.push_back(&ops_[point.at]);
      circle.ranks.push_back(point.rank);
    }
    return circle;
  }

 private:
  using Key = std::tuple<bool, size_t, int, int, uint64_t>;
  size_t point_of(const Flow::InLine& op) {
    const Key key{op.message, op.comm, op.edge.from, op.edge.to, op.seq};
    const auto [place, is_new] = points_.try_emplace(key, ops_.size());
    if (is_new) {
      ops_.push_back(op);
      parent_.push_back(place->second);
      next_.emplace_back();
    }
    return root_of(place->second);
  }
  size_t root_of(size_t at) const {
    while (parent_[at] != at) at = parent_[at];
    return at;
  }
  size_t join(size_t a, size_t b) {
    parent_[root_of(b)] = root_of(a);
    return root_of(a);
  }

  std::map<Key, size_t> points_;
  std::vector<Flow::InLine> ops_;
  std::vector<size_t> parent_;           // points that are one piece
  std::vector<std::vector<Edge>> next_;  // on the edge's rank `to` comes behind
};

Kind kind_of_circle(const Orders::Circle& circle) {
  std::set<size_t> comms;
  size_t messages = 0;
  for (const Flow::InLine* op : circle.points) {
    messages += op->message;
    comms.insert(op->comm);
  }
  if (messages == circle.points.size()) return Kind::p2p_cycle;
  return messages == 0 && comms.size() == 2 ? Kind::order_inversion : Kind::cross_communicator_cycle;
}

void describe_collective(const Comm& comm, uint64_t seq, Finding& finding) {
  finding.seq = seq;
  for (const Member& member : comm.members)
    if (const Call* call = member.call_at(seq); call && !finding.expected) {
      finding.op = op_name(*call);
      finding.expected = signature_of(*call);
      finding.since = call->called;
    }
}

void describe_message(const Comm& comm, const Flow::InLine& op, Finding& finding) {
  Message message{0, std::nullopt, true, op.seq};
  for (const Member& member : comm.members) {
    if (member.comm_rank == op.edge.to) message.peer = member.rank;
    if (member.comm_rank != op.edge.from) continue;
    message.rank = member.rank;
    const std::vector<uint64_t> numbers = edge_numbers(member);
    for (size_t i = 0; i < member.p2p.size(); i++)
      if (numbers[i] == op.seq && member.p2p[i]->peer == op.edge.to) finding.since = member.p2p[i]->called;
  }
  finding.op = "Send";
  finding.message = message;
}

}  // namespace

std::optional<Finding> find_stuck_orders(const Evidence& evidence, const Flow& flow) {
  std::vector<size_t> stuck;
  for (size_t rank = 0; rank < evidence.run.ranks.size() && stuck.size() < kRanks; rank++)
    if (is_stuck(evidence, rank)) stuck.push_back(rank);
  Orders orders;
  for (const size_t rank : stuck)
    for (const std::vector<Flow::InLine>& line : flow.in_line(rank, kInLine)) orders.add(rank, line);
  const Orders::Circle circle = orders.find();
  if (circle.points.empty()) return std::nullopt;
  const auto is_row = [](const Flow::InLine* op) { return !op->message; };
  const auto row = std::find_if(circle.points.begin(), circle.points.end(), is_row);
  const Flow::InLine& shown = row != circle.points.end() ? **row : *circle.points.front();
  const Comm& comm = evidence.table.comms[shown.comm];
  Finding finding;
  finding.kind = kind_of_circle(circle);
  finding.hangs = true;
  finding.comm = shown.comm;
  if (shown.message) {
    describe_message(comm, shown, finding);
  } else {
    describe_collective(comm, shown.seq, finding);
  }
  for (const size_t each : stuck) finding.pending_ns = std::max(finding.pending_ns, evidence.quiet(each));
  finding.victims = stuck;
  // Who has a point before the next waits in it, and what that waits for comes before it elsewhere.
  for (auto rank = circle.ranks.rbegin(); rank != circle.ranks.rend(); ++rank)
    if (finding.cycle.empty() || finding.cycle.back() != *rank) finding.cycle.push_back(*rank);
  if (finding.cycle.size() > 1 && finding.cycle.front() == finding.cycle.back()) finding.cycle.pop_back();
  finding.confidence = Confidence::likely;
  finding.doubts.push_back(
      "the calls were made in opposite orders on one stream; in a circle nobody is to blame alone");
  return finding;
}

}  // namespace lockstep
