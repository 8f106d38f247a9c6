// SPDX-License-Identifier: MIT
//
// The judge on thousands of jobs whose truth is known. Never a wrong name, whatever was lost; what could be found is
// found. `simulator_test --seed N` style reruns: LOCKSTEP_SIM_SEED=N prints one job and its verdict.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "tests/tools/simulator_case.h"
#include "tools/explain/explain.h"
#include "tools/job/agreed.h"
#include "tools/judge/rules.h"
#include "tools/report/report.h"

namespace lockstep::test {
namespace {

struct Outcome {
  std::string wrong;       // a sentence, when somebody was blamed who may not be
  bool acted = false;      // the fault took effect and somebody waits for it, or calls differed
  bool exact = false;      // kind and culprits of the first finding are right
  bool silent = false;     // a verdict of healthy although somebody waits for ever
  Kind kind = Kind::idle;  // of the finding that is right
  std::string verdict;
};

// The whole verdict, as JSON.
constexpr uint64_t kKept = 2;  // rows; few, so that much is left out

std::string report_of(std::vector<Process> processes) {
  Job job;
  job.runs = assemble_runs(std::move(processes));
  const Run& run = job.runs.back();
  const Table table = match(run);
  const JudgeOptions options{std::nullopt, kKept};
  const Evidence evidence = gather(run, table, options);
  Diagnosis diagnosis = judge(run, table, options, 0);
  Symbolizer symbolizer;
  explain(evidence, symbolizer, diagnosis);
  return report_json(job, evidence, diagnosis);
}

// Leaves out what the loader leaves out of large jobs. How many calls went.
size_t leave_out_agreed(std::vector<Process>& processes) {
  AgreedCalls agreed(kKept, 4);
  const std::vector<Process> whole = processes;
  size_t before = 0, after = 0;
  for (const Process& process : whole) {
    agreed.add_head(process.file);
    before += process.file.calls.size();
  }
  do {
    processes = whole;
    for (Process& process : processes) process.messages_left_out = agreed.shrink(process.file);
  } while (agreed.keep_what_differs());
  for (const Process& process : processes) after += process.file.calls.size();
  return before - after;
}

// Has the rank made no call for the whole threshold?
bool is_lost(const Execution& ran, int rank) {
  return std::any_of(ran.processes.begin(), ran.processes.end(), [&](const Process& process) {
    const trace::TraceFile& file = process.file;
    return file.header.env_rank == rank &&
           file.last_beat.mono_ns - file.last_call.mono_ns >= static_cast<int64_t>(kSimThreshold * 1e9);
  });
}

// Was the fault to be found, with all the evidence?
bool must_show(const Case& of, const Execution& ran, const std::set<int>& may) {
  if (of.faults.size() != 1 || !of.to_the_end || !ran.planted) return false;
  const Fault& fault = of.faults.front();
  if (!fault.sharp && !fault.shifts) return false;
  const bool reached = fault.event >= 0 && static_cast<size_t>(fault.event) < ran.reached.size() &&
                       !ran.reached[static_cast<size_t>(fault.event)].empty();
  if (fault.kind == FaultKind::late)
    return somebody_waits(of, ran, may, kSimThreshold / 10) && !is_lost(ran, fault.rank);
  if (fault.shows) return of.ending == Ending::looked_at;
  const bool differs = fault.sharp && !fault.kinds.empty() && is_mismatch(fault.kinds.front());
  return somebody_waits(of, ran, may) || (reached && differs);
}

Outcome play(const Case& of) {
  Execution ran = execute(of.schedule, of.seed, of.cut, of.loss, of.ending, of.threads);
  if (std::getenv("LOCKSTEP_SIM_SEED")) print_job(of, ran);
  std::set<int> may;
  for (const Fault& fault : of.faults) may.insert(fault.may_blame.begin(), fault.may_blame.end());
  Outcome outcome;
  outcome.acted = must_show(of, ran, may);
  const bool waiting = somebody_waits(of, ran, may);

  const std::vector<Run> runs = assemble_runs(std::move(ran.processes));
  const Run& run = runs.back();
  const auto [diagnosis, verdict] = judge_run(run);
  outcome.verdict = verdict;
  for (const Finding& finding : diagnosis.findings)
    if (outcome.wrong.empty()) outcome.wrong = wrong_words(of, ran, run, finding);
  if (waiting && of.to_the_end && diagnosis.verdict == Verdict::healthy && of.ending == Ending::looked_at)
    outcome.silent = true;
  if (of.faults.size() != 1) return outcome;
  const Fault& fault = of.faults.front();
  for (const Finding& finding : diagnosis.findings) {
    if (&finding != &diagnosis.findings.front() && !fault.beside) break;
    if (!is_right(run, fault, finding, of.faults)) continue;
    outcome.exact = true;
    outcome.kind = finding.kind;
  }
  return outcome;
}

struct Score {
  int jobs = 0, acted = 0, exact = 0, wrong = 0, whole = 0, whole_exact = 0, silent = 0;
};

std::set<Kind> play_seeds(uint64_t first, uint64_t count) {
  std::map<std::string, Score> scores;
  std::set<Kind> found;
  std::vector<std::string> wrong, missed;
  for (uint64_t seed = first; seed < first + count; seed++) {
    const Case of = make_case(seed);
    const Outcome outcome = play(of);
    const std::string name = of.faults.empty()      ? "none"
                             : of.faults.size() > 1 ? "two faults"
                                                    : fault_name(of.faults[0].kind);
    Score& score = scores[name];
    score.jobs++;
    score.acted += outcome.acted;
    score.exact += outcome.acted && outcome.exact;
    const bool whole = outcome.acted && of.whole && of.ending != Ending::stopped;
    if (whole && outcome.exact) found.insert(outcome.kind);
    score.whole += whole;
    score.whole_exact += whole && outcome.exact;
    score.wrong += !outcome.wrong.empty();
    score.silent += outcome.silent;
    const bool bad = !outcome.wrong.empty() || (whole && !outcome.exact) || outcome.silent;
    if (!bad) continue;
    const std::string said = outcome.wrong.empty() ? outcome.silent ? "called healthy" : "not found" : outcome.wrong;
    (outcome.wrong.empty() ? missed : wrong)
        .push_back("LOCKSTEP_SIM_SEED=" + std::to_string(seed) + ": " + faults_of(of) + ", " +
                   std::to_string(of.schedule.ranks) + " ranks" + (of.whole ? "" : ", evidence lost") +
                   (of.ending == Ending::stopped     ? ", stopped from outside"
                    : of.ending == Ending::torn_down ? ", torn down"
                                                     : "") +
                   (of.threads ? ", threads" : "") + (of.to_the_end ? "" : ", cut early") + "\n  " + said + "\n  " +
                   outcome.verdict);
  }
  for (const std::vector<std::string>* list : {&wrong, &missed})
    for (size_t i = 0; i < list->size(); i++)
      if (i < 20) ADD_FAILURE() << (*list)[i];
  std::printf("%-22s %6s %6s %6s %12s %6s %6s\n", "fault", "jobs", "acted", "found", "all evidence", "found", "wrong");
  for (const auto& [name, s] : scores)
    std::printf("%-22s %6d %6d %6d %12d %6d %6d\n", name.c_str(), s.jobs, s.acted, s.exact, s.whole, s.whole_exact,
                s.wrong);
  return found;
}

TEST(Simulator, LeavingOutWhatAllAgreedOnChangesNoVerdict) {
  const char* count = std::getenv("LOCKSTEP_SIM_COUNT");
  const uint64_t seeds = count ? std::strtoull(count, nullptr, 10) : 300;
  const char* one = std::getenv("LOCKSTEP_SIM_SEED");
  const uint64_t first = one ? std::strtoull(one, nullptr, 10) : 1, last = one ? first : seeds;
  size_t jobs = 0, went = 0;
  for (uint64_t seed = first; seed <= last; seed++) {
    const Case of = make_case(seed, true);
    std::vector<Process> processes = execute(of.schedule, of.seed, of.cut, of.loss, of.ending).processes;
    std::vector<Process> smaller = processes;
    const size_t gone = leave_out_agreed(smaller);
    if (gone == 0) continue;
    jobs++;
    went += gone;
    EXPECT_EQ(report_of(std::move(smaller)), report_of(std::move(processes))) << "seed " << seed;
  }
  std::printf("%zu jobs of %llu could be made smaller, by %zu calls\n", jobs, static_cast<unsigned long long>(seeds),
              went);
  EXPECT_TRUE(one || jobs > 0);
}

TEST(Simulator, NobodyIsBlamedWhoDidNothing) {
  if (const char* seed = std::getenv("LOCKSTEP_SIM_SEED")) {
    play_seeds(std::strtoull(seed, nullptr, 10), 1);
    return;
  }
  const char* count = std::getenv("LOCKSTEP_SIM_COUNT");
  const std::set<Kind> found = play_seeds(1, count ? std::strtoull(count, nullptr, 10) : 2000);
  for (const std::string& name : kind_names()) {
    const auto is_it = [&](Kind kind) { return name == kind_name(kind); };
    EXPECT_TRUE(std::any_of(found.begin(), found.end(), is_it))
        << "no job was planted in which " << name << " is right";
  }
}

}  // namespace
}  // namespace lockstep::test
