// SPDX-License-Identifier: MIT
//
// Two communicators used in different orders by different ranks.
//
// On one stream, or with a host wait between, that is a deadlock: neither call ever has all its members; see
// rule_circles.cc and rule_stuck_orders.cc. On different streams it works, until something makes it not: NCCL promises
// no progress of one communicator while the other waits. So it is a warning.
//
// Whether a call comes before another is asked of each rank's own record, where rows may be missing: of the calls on
// the one communicator next to a call on the other, the last before and the first behind it are compared between ranks.
// What is in one group is launched together and has no order.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "tools/explain/explain.h"
#include "tools/judge/rules.h"

namespace lockstep {

using trace::Call;

namespace {

struct Shared {
  const Member* a = nullptr;
  const Member* b = nullptr;
};
using Pair = std::pair<size_t, size_t>;  // communicators, the smaller index first

// The pairs of communicators that have at least two ranks in common.
std::map<Pair, std::vector<Shared>> shared_ranks(const Evidence& evidence, const std::set<size_t>& except) {
  std::vector<std::vector<Pair>> of(evidence.run.ranks.size());  // by rank: communicator and member
  for (size_t index = 0; index < evidence.table.comms.size(); index++)
    for (size_t at = 0; at < evidence.table.comms[index].members.size() && !except.count(index); at++)
      of[evidence.table.comms[index].members[at].rank].emplace_back(index, at);
  std::map<Pair, std::vector<Shared>> shared;
  const auto member = [&](const Pair& at) { return &evidence.table.comms[at.first].members[at.second]; };
  for (const std::vector<Pair>& its : of)
    for (size_t i = 0; i < its.size(); i++)
      for (size_t k = i + 1; k < its.size(); k++)
        shared[{its[i].first, its[k].first}].push_back({member(its[i]), member(its[k])});
  for (auto at = shared.begin(); at != shared.end();) at = at->second.size() < 2 ? shared.erase(at) : std::next(at);
  return shared;
}

// The first row that is looked at.
uint64_t newest_rows(const Evidence& evidence, const Comm& comm) {
  uint64_t open = UINT64_MAX;
  for (const Member& member : comm.members)
    open = std::min({open, member.called, member.info->coll_completed.value_or(UINT64_MAX)});
  return open - std::min(open, evidence.kept_rows);
}

// In the order of calling. A captured call is launched when its graph is.
std::vector<const Call*> launched_calls(const Member& member, uint64_t from) {
  std::vector<const Call*> calls;
  for (const Call* call : member.collectives)
    if (call->seq >= from && call->seq < member.launched && !(call->flags & trace::kCaptured)) calls.push_back(call);
  std::sort(calls.begin(), calls.end(), [](const Call* x, const Call* y) { return x->event < y->event; });
  return calls;
}

// What the ranks seen so far say of one call on the first communicator: the fewest and the most calls on the second one
// that come before it.
struct Around {
  uint64_t first_behind = UINT64_MAX;  // on some rank this row of the second communicator comes behind it
  uint64_t before = 0;                 // on some rank all rows below this one come before it
};

struct Inversion {
  uint64_t a = 0, b = 0;  // rows
};

std::optional<Inversion> first_inversion(const std::vector<Shared>& ranks, uint64_t from_a, uint64_t from_b) {
  std::unordered_map<uint64_t, Around> rows;
  std::optional<Inversion> first;
  for (const Shared& rank : ranks) {
    const std::vector<const Call*> a = launched_calls(*rank.a, from_a), b = launched_calls(*rank.b, from_b);
    size_t next = 0;
    for (const Call* call : a) {
      while (next < b.size() && b[next]->event < call->event) next++;
      const auto together = [&](const Call* other) { return call->group && other->group == call->group; };
      size_t before = next, behind = next;
      while (before > 0 && together(b[before - 1])) before--;
      while (behind < b.size() && together(b[behind])) behind++;
      Around& around = rows[call->seq];
      if (before > 0) around.before = std::max(around.before, b[before - 1]->seq + 1);
      if (behind < b.size()) around.first_behind = std::min(around.first_behind, b[behind]->seq);
      if (around.first_behind < around.before && (!first || call->seq < first->a))
        first = Inversion{call->seq, around.first_behind};
    }
  }
  return first;
}

Finding inversion_finding(const Evidence& evidence, const Pair& comms, const std::vector<Shared>& ranks,
                          const Inversion& rows) {
  Finding finding;
  finding.kind = Kind::order_inversion;
  finding.severity = Severity::warning;
  finding.may_hang = false;
  finding.comm = comms.first;
  finding.seq = rows.a;
  std::vector<size_t> a_first, b_first;
  std::string other;
  for (const Shared& rank : ranks) {
    const Call* a = rank.a->call_at(rows.a);
    const Call* b = rank.b->call_at(rows.b);
    if (!a || !b) continue;
    if (!finding.expected) {
      finding.op = op_name(*a);
      finding.expected = signature_of(*a);
      finding.since = a->called;
      other = fmt::format("{} #{} on {}", op_name(*b), rows.b, evidence.table.comms[comms.second].name);
    }
    (a->event < b->event ? a_first : b_first).push_back(rank.a->rank);
  }
  finding.victims = a_first;
  finding.victims.insert(finding.victims.end(), b_first.begin(), b_first.end());
  std::sort(finding.victims.begin(), finding.victims.end());
  const auto verb = [](const std::vector<size_t>& who) { return who.size() == 1 ? "calls" : "call"; };
  finding.detail = fmt::format("{} {} it before {}, {} {} it after that", ranks_text(evidence.run, a_first),
                               verb(a_first), other, ranks_text(evidence.run, b_first), verb(b_first));
  return finding;
}

}  // namespace

std::vector<Finding> find_orders(const Evidence& evidence, const std::vector<Finding>& found) {
  std::set<size_t> accounted;
  for (const Finding& finding : found) {
    if (finding.severity != Severity::error) continue;
    const bool says_so = finding.kind == Kind::order_inversion || finding.kind == Kind::cross_communicator_cycle ||
                         finding.kind == Kind::wrong_communicator;
    if (says_so) return {};
    if (finding.comm) accounted.insert(*finding.comm);  // a call left out or put in shifts all rows behind it
  }
  std::vector<uint64_t> from;
  for (const Comm& comm : evidence.table.comms) from.push_back(newest_rows(evidence, comm));
  for (const auto& [comms, ranks] : shared_ranks(evidence, accounted))
    if (const std::optional<Inversion> rows = first_inversion(ranks, from[comms.first], from[comms.second]))
      return {inversion_finding(evidence, comms, ranks, *rows)};
  return {};
}

}  // namespace lockstep
