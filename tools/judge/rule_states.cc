// SPDX-License-Identifier: MIT
//
// What starts and completions on the device tell, where they are on record: a call that all have made and some have not
// started, a rank that waits for work of its own, teardown in different orders, and errors that came by themselves.

#include <fmt/format.h>

#include <algorithm>

#include "interpose/abi/functions.h"
#include "tools/job/lookup.h"
#include "tools/judge/flow.h"
#include "tools/judge/rules.h"

namespace lockstep {
namespace {

using abi::Fn;
using trace::Call;

// The first row of a communicator that all members have launched and not all have completed; nullopt = there is none,
// or it is not known.
std::optional<uint64_t> unfinished_row(const Comm& comm) {
  uint64_t row = UINT64_MAX, launched = UINT64_MAX;
  for (const Member& member : comm.members) {
    if (!member.info->coll_started || !member.info->coll_completed) return std::nullopt;
    row = std::min(row, *member.info->coll_completed);
    launched = std::min(launched, member.launched);
  }
  if (!comm.complete() || row >= launched) return std::nullopt;
  return row;
}

std::optional<Finding> not_started(const Evidence& evidence, const Flow& flow, size_t index) {
  const Comm& comm = evidence.table.comms[index];
  const std::optional<uint64_t> row = unfinished_row(comm);
  if (!row || flow.holds_row(index, *row)) return std::nullopt;
  Finding finding;
  finding.kind = Kind::not_started;
  for (const Member& member : comm.members) {
    if (evidence.life(member.rank).end == End::clean) return std::nullopt;
    if (*member.info->coll_started > *row) {
      trace::Time since;
      const int64_t age = waited(evidence, member, *row, &since);
      finding.victims.push_back(member.rank);
      if (age > finding.pending_ns) finding.pending_ns = age, finding.since = since;
      continue;
    }
    if (!is_unstarted(member, *row)) return std::nullopt;
    // Behind something else of NCCL's it is a victim of that.
    if (!flow.is_clear_before(member.rank, index, *row)) return std::nullopt;
    if (evidence.quiet(member.rank) < evidence.threshold_ns) return std::nullopt;
    finding.culprits.push_back(member.rank);
    finding.actual[member.rank] = std::nullopt;
  }
  if (finding.culprits.empty() || finding.victims.empty() || finding.pending_ns < evidence.threshold_ns)
    return std::nullopt;
  finding.hangs = true;
  finding.comm = index;
  finding.seq = row;
  for (const Member& member : comm.members)
    if (const Call* call = member.call_at(*row); call && !finding.expected) {
      finding.op = op_name(*call);
      finding.expected = signature_of(*call);
    }
  finding.confidence = Confidence::likely;
  finding.doubts.push_back("what is in front of it on the stream is not on record");
  return finding;
}

// --- teardown

const Call* open_teardown(const Evidence& evidence, size_t rank) {
  const Rank& who = evidence.run.ranks[rank];
  const trace::TraceFile& file = evidence.file(rank);
  for (const trace::ThreadInfo& thread : file.threads) {
    if (!thread.open_call) continue;
    if (!is_its_thread(who, thread.tid)) continue;
    for (auto call = file.calls.rbegin(); call != file.calls.rend(); ++call)
      if (call->event == *thread.open_call)
        return call->fn == static_cast<uint16_t>(Fn::CommDestroy) || call->fn == static_cast<uint16_t>(Fn::CommFinalize)
                   ? &*call
                   : nullptr;
  }
  return nullptr;
}

std::optional<Finding> teardown_order(const Evidence& evidence) {
  struct Inside {
    size_t rank = 0, comm = 0;
    const Call* call = nullptr;
  };
  std::vector<Inside> inside;
  for (size_t index = 0; index < evidence.table.comms.size(); index++)
    for (const Member& member : evidence.table.comms[index].members) {
      const Call* call = open_teardown(evidence, member.rank);
      if (call && call->comm == member.info->serial && evidence.quiet(member.rank) >= evidence.threshold_ns)
        inside.push_back({member.rank, index, call});
    }
  const auto is_member = [&](size_t rank, size_t comm) {
    const auto& members = evidence.table.comms[comm].members;
    return std::any_of(members.begin(), members.end(), [&](const Member& member) { return member.rank == rank; });
  };
  for (const Inside& a : inside)
    for (const Inside& b : inside) {
      if (a.comm >= b.comm || !is_member(a.rank, b.comm) || !is_member(b.rank, a.comm)) continue;
      Finding finding;
      finding.kind = Kind::teardown_order;
      finding.hangs = true;
      finding.comm = a.comm;
      finding.op = op_name(*a.call);
      finding.since = a.call->called;
      finding.pending_ns = evidence.quiet(a.rank);
      finding.cycle = {a.rank, b.rank};
      for (const Inside& each : inside) finding.victims.push_back(each.rank);
      finding.detail = fmt::format("others tear down {} meanwhile", evidence.table.comms[b.comm].name);
      finding.confidence = Confidence::likely;
      finding.doubts.push_back("in a circle nobody is to blame alone");
      return finding;
    }
  return std::nullopt;
}

// --- errors

// unhandled CUDA error, system error, internal error; a remote error is somebody else's.
constexpr int kOwnErrors[] = {1, 2, 3};
constexpr int kRemoteError = 6;

}  // namespace

std::vector<Finding> find_device_states(const Evidence& evidence, const std::vector<Wait>& waits,
                                        const std::vector<Finding>& mismatches, const std::vector<Finding>& found) {
  std::vector<Finding> findings;
  if (std::optional<Finding> teardown = teardown_order(evidence)) return {std::move(*teardown)};
  bool stuck = false;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) stuck = stuck || is_stuck(evidence, rank);
  if (!stuck) return findings;
  Flow flow(evidence);
  // Where somebody is missing, or a circle of waits is known, that is what the rest comes down to.
  const bool nobody_known = std::all_of(found.begin(), found.end(), [](const Finding& finding) {
    return holds_nobody_up(finding) ||
           (finding.culprits.empty() && finding.traceless.empty() &&
            (finding.kind == Kind::stalled_together || finding.kind == Kind::init_incomplete));
  });
  if (nobody_known)
    if (std::optional<Finding> inverted = find_stuck_orders(evidence, flow)) findings.push_back(std::move(*inverted));
  for (const Wait& wait : waits)
    if (!wait.absent.empty()) flow.block(wait);
  for (const Finding& mismatch : mismatches) flow.block(mismatch);
  for (size_t index = 0; index < evidence.table.comms.size(); index++)
    if (std::optional<Finding> finding = not_started(evidence, flow, index)) findings.push_back(std::move(*finding));
  return findings;
}

std::vector<Finding> find_errors(const Evidence& evidence) {
  const Call* first = nullptr;
  size_t who = 0;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) {
    if (evidence.life(rank).end == End::clean) continue;
    const Rank& its = evidence.run.ranks[rank];
    for (const Call& call : evidence.file(rank).calls) {
      const bool error = call.returned && (call.result == kRemoteError ||
                                           std::count(std::begin(kOwnErrors), std::end(kOwnErrors), call.result));
      const bool own = is_its_thread(its, call.tid);
      if (!error || !own || (first && first->return_time.wall_ns <= call.return_time.wall_ns)) continue;
      first = &call;
      who = rank;
    }
  }
  if (!first) return {};
  Finding finding;
  finding.kind = Kind::comm_error;
  finding.op = op_name(*first);
  finding.since = first->return_time;
  finding.detail = fmt::format("{} returned \"{}\"", finding.op, abi::result_name(first->result));
  for (size_t index = 0; index < evidence.table.comms.size(); index++)
    for (const Member& member : evidence.table.comms[index].members)
      if (member.rank == who && member.info->serial == first->comm) finding.comm = index;
  if (first->result == kRemoteError) {
    finding.victims = {who};
    finding.confidence = Confidence::possible;
    finding.doubts.push_back("a remote error comes from another rank, which is not on record");
  } else {
    finding.culprits = {who};
    finding.actual[who] = std::nullopt;
    finding.confidence = Confidence::likely;
    finding.doubts.push_back("the first error on record; one outside NCCL may have come before it");
  }
  return {finding};
}

}  // namespace lockstep
