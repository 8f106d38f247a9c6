// SPDX-License-Identifier: MIT
//
// All rules, in the order in which one explains the other: differing calls, then who is waited for, then deaths nobody
// waits for, then quiet, then holes in the evidence. The findings come out root cause first: by the time it happened.

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "interpose/abi/functions.h"
#include "tools/explain/explain.h"
#include "tools/job/lookup.h"
#include "tools/judge/rules.h"

namespace lockstep {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kDefaultThreshold = 60'000 * kMillisecond;

int64_t threshold_of(const Run& run) {
  int64_t threshold = 0;
  for (const Process& process : run.processes)
    threshold = std::max(threshold, static_cast<int64_t>(process.file.header.hang_ms) * kMillisecond);
  return threshold > 0 ? threshold : kDefaultThreshold;
}

bool is_mismatch(Kind kind) {
  return kind == Kind::op_mismatch || kind == Kind::count_mismatch || kind == Kind::dtype_mismatch ||
         kind == Kind::redop_mismatch || kind == Kind::root_mismatch || kind == Kind::p2p_size_mismatch;
}

bool communicates(const trace::Call& call) {
  const abi::FunctionInfo* info = abi::find_function(call.fn);
  if (!info) return true;  // newer than this build
  switch (info->kind) {
    case abi::FunctionKind::local:
    case abi::FunctionKind::query:
    case abi::FunctionKind::param:
    case abi::FunctionKind::redop:
    case abi::FunctionKind::memory:
      return false;
    default:
      return true;
  }
}

// The begin or end of the rank's last call that communicates. Where the ring holds none, the last call of any kind, so
// that a rank is never taken to be quiet for want of evidence.
trace::Time last_work(const trace::TraceFile& file, const Rank& rank) {
  for (auto call = file.calls.rbegin(); call != file.calls.rend(); ++call) {
    if (!communicates(*call)) continue;
    if (!is_its_thread(rank, call->tid)) continue;
    return call->returned && call->return_time.mono_ns ? call->return_time : call->called;
  }
  return file.last_call;
}

// When an operation of the rank was last seen to start or complete.
trace::Time last_move(const trace::TraceFile& file, const Rank& rank) {
  trace::Time last;
  for (const trace::CommInfo& comm : file.comms)
    if (comm.moved.wall_ns != 0 && comm.moved.mono_ns > last.mono_ns &&
        std::find(rank.comms.begin(), rank.comms.end(), comm.serial) != rank.comms.end())
      last = comm.moved;
  return last;
}

// Errors before warnings before notes; what could not be traced to anybody after what could, and last what nobody can
// say who was to make; calls that differ and whose turn never came after what is in front of them; within each the
// earliest first, and an end before a mere absence. Everything after that makes the order the same however the traces
// were found.
void sort_findings(std::vector<Finding>& findings) {
  const auto openness = [](const Finding& finding) {
    const bool nobody = finding.culprits.empty() && finding.traceless.empty();
    return !nobody ? 0 : finding.kind == Kind::init_incomplete ? 2 : finding.kind == Kind::stalled_together ? 1 : 0;
  };
  const auto key = [&](const Finding& finding) {
    return std::make_tuple(finding.severity, openness(finding), !finding.begun, finding.since.wall_ns,
                           !is_mismatch(finding.kind), finding.kind, finding.comm, finding.seq, finding.culprits);
  };
  std::stable_sort(findings.begin(), findings.end(), [&](const Finding& a, const Finding& b) {
    if (a.severity == b.severity && a.comm == b.comm && (a.kind == Kind::died) != (b.kind == Kind::died))
      return a.kind == Kind::died;
    return key(a) < key(b);
  });
}

// The step in which the differing call was made: the job may have gone on since.
void add_marks_of_call(const Evidence& evidence, const std::vector<size_t>& ranks, Finding& finding) {
  for (const size_t rank : ranks)
    for (const Member& member : evidence.table.comms[*finding.comm].members) {
      if (member.rank != rank || finding.step) continue;
      if (const trace::Call* call = member.call_at(*finding.seq)) finding.step = call->step;
    }
}

// Clocks of two hosts may differ by more than the calls are apart; the numbers of a communicator do not lie.
void first_mismatch_first(std::vector<Finding>& findings) {
  if (findings.empty() || !findings.front().comm || !findings.front().seq) return;
  const Finding& first = findings.front();
  const auto earlier = std::find_if(findings.begin() + 1, findings.end(), [&](const Finding& finding) {
    return is_mismatch(finding.kind) && finding.begun && finding.severity == first.severity &&
           finding.comm == first.comm && finding.seq && *finding.seq <= *first.seq;
  });
  if (earlier != findings.end()) std::rotate(findings.begin(), earlier, earlier + 1);
}

// Marks of the ranks a finding speaks of: the culprit's, else the first victim's.
void add_marks(const Evidence& evidence, Finding& finding) {
  std::vector<size_t> ranks = finding.culprits;
  ranks.insert(ranks.end(), finding.victims.begin(), finding.victims.end());
  if (is_mismatch(finding.kind) && finding.seq) return add_marks_of_call(evidence, ranks, finding);
  for (const size_t rank : ranks) {
    for (const trace::ThreadInfo& thread : evidence.file(rank).threads) {
      const Rank& who = evidence.run.ranks[rank];
      if (!is_its_thread(who, thread.tid)) continue;
      if (thread.step && (!finding.step || *thread.step > *finding.step)) finding.step = thread.step;
      if (finding.sample.empty()) finding.sample = thread.sample;
    }
    if (finding.step) return;
  }
}

// A death is a failure whatever waits for it; else a job in which somebody waits for ever is hung, whatever the cause:
// also behind something that nobody can see, so that the turn of a call does not come.
Verdict verdict_of(const std::vector<Finding>& findings) {
  const Finding& root = findings.front();
  if (root.kind == Kind::died || root.kind == Kind::comm_error || root.kind == Kind::duplicate_device)
    return Verdict::failed;
  const auto hangs = [](const Finding& finding) {
    return finding.severity == Severity::error && (finding.hangs || (finding.seq && !finding.begun));
  };
  if (std::any_of(findings.begin(), findings.end(), hangs)) return Verdict::hung;
  return is_mismatch(root.kind) || root.kind == Kind::result_divergence ? Verdict::mismatch : Verdict::unknown;
}

std::vector<Finding> errors_of(std::vector<Finding> findings) {
  const auto is_mild = [](const Finding& finding) { return finding.severity != Severity::error; };
  findings.erase(std::remove_if(findings.begin(), findings.end(), is_mild), findings.end());
  return findings;
}

void drop_stalled(std::vector<Finding>& findings) {
  findings.erase(std::remove_if(findings.begin(), findings.end(),
                                [](const Finding& finding) { return finding.kind == Kind::stalled_together; }),
                 findings.end());
}

// Everybody sits in the same call, and a trace is missing: the missing trace is what to say first.
void prefer_missing_trace(std::vector<Finding>& findings) {
  const auto is_missing = [](const Finding& finding) { return finding.kind == Kind::missing_trace; };
  if (std::any_of(findings.begin(), findings.end(), is_missing)) drop_stalled(findings);
}

// Is there a point-to-point call that nothing above could judge?
bool rests_on_p2p(const Evidence& evidence) {
  for (const Comm& comm : evidence.table.comms)
    for (const Member& member : comm.members) {
      const Life& life = evidence.life(member.rank);
      const trace::CommInfo& info = *member.info;
      if (info.p2p_called == info.p2p_completed.value_or(0) || life.end == End::clean) continue;
      if (life.seen.mono_ns - member.file->last_call.mono_ns >= evidence.threshold_ns) return true;
    }
  return false;
}

// Ranks that may be stuck for all one knows: quiet for long, with calls that may be pending, and no snapshot.
std::vector<size_t> quiet_and_unseen(const Evidence& evidence) {
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++)
    if (evidence.life(rank).end == End::none && evidence.quiet(rank) < evidence.threshold_ns) return {};
  for (const Comm& comm : evidence.table.comms)
    for (const Member& member : comm.members) {
      if (evidence.life(member.rank).end != End::none || evidence.quiet(member.rank) < evidence.threshold_ns) continue;
      const bool done = member.launched == 0 || member.info->coll_completed.value_or(0) >= member.launched;
      if (done || where_it_sits(evidence, member.rank) != Sits::unknown) continue;
      if (std::find(ranks.begin(), ranks.end(), member.rank) == ranks.end()) ranks.push_back(member.rank);
    }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// What could turn "nothing found" into something: each clause is a reason not to say healthy.
std::vector<std::string> gaps(const Evidence& evidence, size_t files_left_out) {
  std::vector<std::string> reasons;
  if (evidence.table.comms.empty()) reasons.push_back("no communicator was made, so there is nothing to compare");
  if (files_left_out && evidence.run.world_size <= 0)
    reasons.push_back(
        fmt::format("{} trace files could not be read, and nothing says how many ranks there are", files_left_out));
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) {
    const trace::TraceFile& file = evidence.file(rank);
    if (file.dropped)
      reasons.push_back(fmt::format("{} events of {} were not recorded", file.dropped, rank_name(evidence.run, rank)));
    if (!file.recording) reasons.push_back(fmt::format("recording stopped in {}", rank_name(evidence.run, rank)));
  }
  if (const std::vector<size_t> unseen = quiet_and_unseen(evidence); !unseen.empty())
    reasons.push_back(fmt::format("{} made calls whose completion is not on record, and nothing tells where {} since",
                                  ranks_text(evidence.run, unseen),
                                  unseen.size() == 1 ? "it has been" : "they have been"));
  if (rests_on_p2p(evidence))
    reasons.push_back("ranks have been quiet since point-to-point calls, whose completion is not on record");
  return reasons;
}

// Of a killing the first end noted on a host, and how much before the next: too little to name anybody, and all there
// is.
std::string first_end(const Evidence& evidence) {
  std::vector<size_t> killed;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++)
    if (is_struck(evidence.life(rank)) && evidence.life(rank).time_known) killed.push_back(rank);
  const auto when = [&](size_t rank) { return evidence.life(rank).when.wall_ns; };
  std::stable_sort(killed.begin(), killed.end(), [&](size_t a, size_t b) { return when(a) < when(b); });
  constexpr int64_t kSeen = 5 * kMillisecond;
  if (killed.size() < 2 || when(killed[1]) - when(killed[0]) < kSeen) return "";
  for (const size_t rank : killed)
    if (std::string(evidence.file(rank).header.host) != evidence.file(killed[0]).header.host)
      return "the clocks of several hosts do not tell which rank was killed first";
  return fmt::format(
      "the first end noted is that of {}, {} ms before the next: it may be the cause, but a busy machine notes "
      "ends of one instant as far apart",
      rank_name(evidence.run, killed[0]), (when(killed[1]) - when(killed[0])) / kMillisecond);
}

void remark_on_end(const Evidence& evidence, Diagnosis& diagnosis) {
  if (!evidence.outside || evidence.run.ranks.empty()) return;
  diagnosis.remarks.push_back(fmt::format("the whole job was stopped from outside: {} {}", rank_name(evidence.run, 0),
                                          end_in_words(evidence.life(0))));
  if (std::string first = first_end(evidence); !first.empty()) diagnosis.remarks.push_back(std::move(first));
}

void remark_on_ring(const Evidence& evidence, Diagnosis& diagnosis) {
  uint64_t overwritten = 0;
  for (const Process& process : evidence.run.processes) overwritten += process.file.overwritten;
  if (overwritten)
    diagnosis.remarks.push_back(fmt::format(
        "the rings have wrapped: {} older events are gone, rows before them were not compared", overwritten));
}

}  // namespace

Evidence gather(const Run& run, const Table& table, const JudgeOptions& options) {
  std::vector<Life> lives = lives_of(run);
  const bool outside = stopped_from_outside(run, lives);
  std::vector<trace::Time> worked, moved;
  for (const Rank& rank : run.ranks) {
    const trace::TraceFile& file = run.processes[rank.process].file;
    worked.push_back(last_work(file, rank));
    moved.push_back(last_move(file, rank));
  }
  return Evidence{run,
                  table,
                  std::move(lives),
                  options.threshold_ns.value_or(threshold_of(run)),
                  outside,
                  std::move(worked),
                  std::move(moved),
                  options.kept_rows};
}

Diagnosis judge(const Run& run, const Table& table, const JudgeOptions& options, size_t files_left_out) {
  const Evidence evidence = gather(run, table, options);
  Diagnosis diagnosis;
  diagnosis.threshold_ns = evidence.threshold_ns;

  std::vector<Finding> findings = find_mismatches(evidence);
  note_turns(evidence, findings);
  Explained explained;
  for (const Finding& mismatch : findings)
    if (mismatch.seq && mismatch.begun) explained.emplace(*mismatch.comm, *mismatch.seq);

  const std::vector<Wait> waits = find_waits(evidence, findings);
  const auto take = [&](std::vector<Finding> more) {
    for (Finding& finding : more) findings.push_back(std::move(finding));
  };
  std::vector<Finding> blamed = blame_waits(evidence, waits, explained, findings);
  const std::vector<Finding> mismatches = findings;
  take(std::move(blamed));
  take(find_shared_devices(evidence));
  take(find_deaths(evidence, waits, findings));
  fold_followers(evidence, findings);
  if (std::vector<Finding> states = find_device_states(evidence, waits, mismatches, findings); !states.empty()) {
    drop_stalled(findings);  // now it is known why
    take(std::move(states));
  }
  if (findings.empty()) take(find_errors(evidence));
  if (findings.empty()) take(find_quiet(evidence, waits));
  if (std::all_of(findings.begin(), findings.end(), holds_nobody_up)) take(errors_of(find_quiet(evidence, waits)));
  take(find_divergence(evidence));
  take(find_setup(evidence));
  take(find_orders(evidence, findings));
  take(find_missing_traces(evidence, findings));
  prefer_missing_trace(findings);
  for (Finding& finding : findings) add_marks(evidence, finding);
  sort_findings(findings);
  first_mismatch_first(findings);

  diagnosis.findings = std::move(findings);
  const bool has_error = !diagnosis.findings.empty() && diagnosis.findings.front().severity == Severity::error;
  if (has_error) {
    diagnosis.verdict = verdict_of(diagnosis.findings);
  } else {
    const std::vector<std::string> reasons = gaps(evidence, files_left_out);
    diagnosis.verdict = reasons.empty() ? Verdict::healthy : Verdict::unknown;
    diagnosis.remarks = reasons;
  }
  remark_on_end(evidence, diagnosis);
  remark_on_ring(evidence, diagnosis);
  return diagnosis;
}

}  // namespace lockstep
