// SPDX-License-Identifier: MIT
//
// The table of ranks: the state of each in words, its last call, its step and its last sign of life.

#include <fmt/format.h>

#include "tools/explain/explain.h"
#include "tools/job/lookup.h"

namespace lockstep {

using trace::Call;

namespace {

std::string state_text(const Evidence& evidence, const Diagnosis& diagnosis, size_t rank) {
  const Life& life = evidence.life(rank);
  std::string end = life.end != End::none ? end_in_words(life)
                    : evidence.stopped(rank) != Stopped::no
                        ? std::string("is ") + stopped_in_words(evidence.stopped(rank))
                        : "";
  if (diagnosis.findings.empty() || !diagnosis.findings.front().comm || !diagnosis.findings.front().seq)
    return end.empty() ? "running" : end;
  const Finding& finding = diagnosis.findings.front();
  const Comm& comm = evidence.table.comms[*finding.comm];
  const uint64_t seq = finding.stuck_seq.value_or(*finding.seq);
  const std::string what = fmt::format("#{} on {}", seq, comm.name);
  const Member* member = member_of(comm, rank);
  std::string state;
  if (!member) {
    state = fmt::format("not in {}", comm.name);
  } else if (member->launched <= seq) {
    state =
        member->called > seq ? fmt::format("{} inside a group never closed", what) : fmt::format("{} not called", what);
  } else {
    const Call* call = member->call_at(seq);
    const bool open = call && !call->returned && member->info->coll_returned <= seq;
    state = open ? fmt::format("{} called, not returned", what) : fmt::format("{} returned (enqueued)", what);
    if (member->info->coll_completed && *member->info->coll_completed > seq) state = fmt::format("{} completed", what);
  }
  return end.empty() ? state : state + "; " + end;
}

std::string last_call_text(const Evidence& evidence, size_t rank) {
  const Call* newest = nullptr;
  std::string text = "-";
  for (const Comm& comm : evidence.table.comms) {
    const Member* member = member_of(comm, rank);
    if (!member || member->collectives.empty()) continue;
    const Call* call = member->collectives.back();
    if (newest && newest->event > call->event) continue;
    newest = call;
    text = fmt::format("{} #{} on {}", op_name(*call), call->seq, comm.name);
  }
  return text;
}

}  // namespace

RankState rank_state(const Evidence& evidence, const Diagnosis& diagnosis, size_t rank) {
  RankState state;
  state.state = state_text(evidence, diagnosis, rank);
  state.last_call = last_call_text(evidence, rank);
  for (const trace::ThreadInfo& thread : evidence.file(rank).threads)
    if (thread.step && is_its_thread(evidence.run.ranks[rank], thread.tid)) state.step = std::to_string(*thread.step);
  if (state.step.empty()) state.step.push_back('-');
  state.sign = clock_text(evidence.life(rank).seen.wall_ns);
  return state;
}

}  // namespace lockstep
