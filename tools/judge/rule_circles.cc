// SPDX-License-Identifier: MIT
//
// Waits that come down to nobody: circles, which blame nobody, and what cannot be seen. In a circle of two
// communicators a call may be told to have been made on the wrong one; that one is named.

#include <fmt/format.h>

#include <algorithm>

#include "tools/explain/explain.h"
#include "tools/job/lookup.h"
#include "tools/judge/wait_graph.h"

namespace lockstep {
namespace {

// Has the call that one side waits in been made before on a smaller communicator of just those ranks, and never on this
// one? Then it was meant for that.
bool belongs_elsewhere(const Evidence& evidence, const Wait& wait) {
  const Comm& comm = evidence.table.comms[wait.comm];
  const Member* first = member_of(comm, wait.waiting.front());
  const trace::Call* call = first ? first->call_at(wait.seq) : nullptr;
  if (!call) return false;
  const Signature signature = signature_of(*call);
  for (const trace::Call* other : first->collectives)
    if (other->seq < wait.seq && signature_of(*other) == signature) return false;
  for (const Comm& smaller : evidence.table.comms) {
    if (&smaller == &comm || !smaller.complete() || smaller.members.size() != wait.waiting.size()) continue;
    const Member* member = member_of(smaller, wait.waiting.front());
    const bool same = member && std::all_of(wait.waiting.begin(), wait.waiting.end(),
                                            [&](size_t rank) { return member_of(smaller, rank) != nullptr; });
    if (same && std::any_of(member->collectives.begin(), member->collectives.end(), [&](const trace::Call* other) {
          return other->event < call->event && signature_of(*other) == signature;
        }))
      return true;
  }
  return false;
}

// A call that somebody left out, and who goes on to wait in one that its peers have launched behind it: the left-out
// call holds up the very rank it waits for, and no second wait is in between. The two ranks; empty = it does not.
std::vector<size_t> circle_over_streams(const Graph& graph, const Wait& wait) {
  Flow behind = graph.empty;
  behind.block(wait);
  for (const size_t rank : wait.absent)
    if (graph.stances[rank] == Stance::held && behind.holds(rank)) return {rank, wait.waiting.front()};
  return {};
}

// No two waits make the circle: one does by itself, over what is on the streams or in a group.
void close_by_itself(const Graph& graph, const std::vector<size_t>& oldest, Finding& finding) {
  if (const Wait* odd = odd_message(graph, oldest)) {
    finding = blank_finding(graph.evidence, *odd);
    finding.kind = Kind::group_mismatch;
    return;
  }
  for (const size_t index : oldest) {
    std::vector<size_t> ranks = circle_over_streams(graph, graph.waits[index]);
    if (ranks.empty()) continue;
    finding = blank_finding(graph.evidence, graph.waits[index]);
    finding.kind = Kind::cross_communicator_cycle;
    finding.cycle = std::move(ranks);
    return;
  }
}

// Those who wait, and those who sit in what all have launched and what stands behind one of these waits.
void add_victims(const Graph& graph, const std::vector<size_t>& among, Finding& finding) {
  Flow behind = graph.empty;
  for (const size_t wait : among) {
    add_unique(finding.victims, graph.waits[wait].waiting, finding.culprits);
    behind.block(graph.waits[wait]);
  }
  add_unique(finding.victims, stuck_in(graph, behind, graph.evidence.threshold_ns / 2), finding.culprits);
}

}  // namespace

Finding blame_circle(const Graph& graph, const std::vector<size_t>& among) {
  constexpr size_t kMost = 64, kMessages = 256;  // a circle is found among the oldest, if at all
  std::vector<size_t> oldest = among;
  std::stable_sort(oldest.begin(), oldest.end(),
                   [&](size_t a, size_t b) { return graph.waits[a].age_ns > graph.waits[b].age_ns; });
  const Evidence& evidence = graph.evidence;
  std::vector<size_t> messages;
  for (const size_t wait : oldest)
    if (graph.waits[wait].what == Wait::What::p2p && messages.size() < kMessages) messages.push_back(wait);
  if (oldest.size() > kMost) oldest.resize(kMost);
  Circle circle = find_circle(graph, messages);
  const bool by_messages = !circle.ranks.empty();
  if (!by_messages) circle = find_circle(graph, oldest);
  const std::vector<const Wait*>& through = circle.through;
  Finding finding = blank_finding(evidence, through.empty() ? graph.waits[oldest.front()] : *through.front());
  finding.pending_ns = graph.waits[oldest.front()].age_ns;
  const bool collectives = std::all_of(through.begin(), through.end(),
                                       [](const Wait* wait) { return wait->what == Wait::What::collective; });
  finding.kind = by_messages                          ? Kind::p2p_cycle
                 : through.size() == 2 && collectives ? Kind::order_inversion
                                                      : Kind::cross_communicator_cycle;
  finding.cycle = std::move(circle.ranks);
  if (through.empty()) close_by_itself(graph, oldest, finding);
  finding.confidence = Confidence::likely;
  finding.doubts.push_back("what the host waited for is told by the stacks and the order of calls alone");
  if (finding.kind == Kind::order_inversion)
    for (const Wait* wait : through) {
      if (!belongs_elsewhere(evidence, *wait)) continue;
      finding = blank_finding(evidence, *wait);
      finding.kind = Kind::wrong_communicator;
      finding.culprits = wait->waiting;
      finding.confidence = Confidence::likely;
      finding.doubts.push_back("that the call belongs on the smaller communicator follows from earlier calls there");
      break;
    }
  add_victims(graph, among, finding);
  return finding;
}

// Somebody waits for ranks that wait themselves, and nobody is seen to be missing from what those wait for.
Finding blame_hidden(const Graph& graph, const std::vector<size_t>& among) {
  const Wait* oldest = &graph.waits[among.front()];
  for (const size_t wait : among)
    if (graph.waits[wait].age_ns > oldest->age_ns) oldest = &graph.waits[wait];
  Finding finding = blank_finding(graph.evidence, *oldest);
  finding.kind = Kind::stalled_together;
  finding.confidence = Confidence::possible;
  finding.detail =
      fmt::format("{} {} not made that call, but may be held up as well: nobody is named",
                  ranks_text(graph.evidence.run, oldest->absent), oldest->absent.size() == 1 ? "has" : "have");
  finding.doubts.push_back("what those wait for that have not made the call is not on record");
  for (const size_t wait : among) add_unique(finding.victims, graph.waits[wait].waiting, {});
  return finding;
}

}  // namespace lockstep
