// SPDX-License-Identifier: MIT
//
// The judge on thousands of jobs whose truth is known. Never a wrong name, whatever was lost; what could be found is
// found. `simulator_test --seed N` style reruns: LOCKSTEP_SIM_SEED=N prints one job and its verdict.

#include "tests/tools/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "tools/explain/explain.h"
#include "tools/job/agreed.h"
#include "tools/judge/rules.h"
#include "tools/report/report.h"

namespace lockstep::test {
namespace {

struct Case {
  uint64_t seed = 0;
  Schedule schedule;
  std::vector<Fault> faults;
  Loss loss;
  bool whole = true;  // nothing was lost by chance
  bool to_the_end = true, threads = false;
  Ending ending = Ending::looked_at;
  double cut = 0;
};

Loss random_loss(Random& random, int ranks) {
  Loss loss;
  if (random.chance(0.5)) return loss;
  loss.snapshots = random.chance(0.3);
  loss.device_states = random.chance(0.5);
  if (random.chance(0.3)) loss.ring = static_cast<size_t>(1 + random.below(40));
  if (ranks > 2 && random.chance(0.2)) loss.no_trace.insert(random.below(ranks));
  return loss;
}

// None, one or two; two in one place, or one that only works alone beside another, hide one another.
void add_faults(Random& random, Case& made) {
  const Schedule whole = made.schedule;
  const int faults = random.chance(0.15) ? 2 : 1;
  for (int i = 0; i < faults; i++) {
    const FaultKind kind = random.pick(all_faults());
    if (kind == FaultKind::none) continue;
    std::optional<Fault> fault = inject(random, kind, made.schedule);
    const bool apart = fault && (made.faults.empty() ||
                                 (made.faults[0].event != fault->event && !fault->alone && !made.faults[0].alone));
    if (apart) {
      made.faults.push_back(std::move(*fault));
    } else {
      made.schedule = whole;
      made.faults.clear();
    }
  }
}

Case make_case(uint64_t seed, bool lengthy = false) {
  Random random(seed);
  Case made;
  made.seed = seed;
  made.schedule = random_schedule(random, lengthy);
  add_faults(random, made);
  made.loss = random_loss(random, made.schedule.ranks);
  made.whole = !made.loss.any();
  made.to_the_end = random.chance(0.7);
  if (random.chance(0.15)) made.ending = Ending::stopped;
  const double end = execute(made.schedule, seed, std::numeric_limits<double>::infinity(), {}).end;
  made.cut = made.to_the_end ? end + kSimThreshold * random.real(1.1, 3) : random.real(0, end * 1.2);
  if (made.to_the_end && random.chance(0.2)) made.ending = Ending::torn_down;
  bool may_be_threads = true;
  for (const Fault& fault : made.faults) {
    if (fault.kind == FaultKind::dies || fault.kind == FaultKind::leaves || fault.alone) may_be_threads = false;
    if (fault.kind == FaultKind::no_trace) made.loss.no_trace = {fault.rank};
    if (fault.looked_at == 0) continue;
    made.cut = end + kSimThreshold * fault.looked_at;
    made.ending = Ending::looked_at;
    made.to_the_end = true;
  }
  made.threads = random.chance(0.15) && may_be_threads;
  return made;
}

struct Outcome {
  std::string wrong;       // a sentence, when somebody was blamed who may not be
  bool acted = false;      // the fault took effect and somebody waits for it, or calls differed
  bool exact = false;      // kind and culprits of the first finding are right
  bool silent = false;     // a verdict of healthy although somebody waits for ever
  Kind kind = Kind::idle;  // of the finding that is right
  std::string verdict;
};

std::string names(const std::set<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text.empty() ? "nobody" : text;
}

std::set<int> blamed(const Run& run, const Finding& finding) {
  std::set<int> ranks(finding.traceless.begin(), finding.traceless.end());
  for (const size_t rank : finding.culprits) ranks.insert(run.ranks[rank].number);
  return ranks;
}

bool is_mismatch(Kind kind) {
  return kind == Kind::op_mismatch || kind == Kind::count_mismatch || kind == Kind::dtype_mismatch ||
         kind == Kind::redop_mismatch || kind == Kind::root_mismatch || kind == Kind::p2p_size_mismatch;
}

// Somebody other than those to blame has been held for the whole threshold, or for as long as is said.
bool somebody_waits(const Case& of, const Execution& ran, const std::set<int>& except,
                    double at_least = kSimThreshold) {
  for (int rank = 0; rank < of.schedule.ranks; rank++)
    if (ran.waits[static_cast<size_t>(rank)] && !except.count(rank) &&
        of.cut - ran.last_moved[static_cast<size_t>(rank)] >= at_least)
      return true;
  return false;
}

// For a person who reruns one seed.
void print_job(const Case& of, const Execution& ran) {
  for (const Process& process : ran.processes) {
    const trace::TraceFile& file = process.file;
    std::printf("rank %d: end %d/%d, waits %d\n", file.header.env_rank, static_cast<int>(file.exit_kind),
                file.exit_code, static_cast<int>(ran.waits[static_cast<size_t>(file.header.env_rank)]));
    for (const trace::CommInfo& comm : file.comms)
      std::printf("  comm %u %s rank %d of %d, state %d: called %llu started %lld completed %lld\n", comm.serial,
                  comm.name.c_str(), comm.rank, comm.nranks, static_cast<int>(comm.state),
                  static_cast<unsigned long long>(comm.coll_called),
                  comm.coll_started ? static_cast<long long>(*comm.coll_started) : -1,
                  comm.coll_completed ? static_cast<long long>(*comm.coll_completed) : -1);
    for (const trace::Call& call : file.calls)
      std::printf("  %llu %s comm %u seq %lld count %llu peer %d stream %llu group %u at %.3f%s\n",
                  static_cast<unsigned long long>(call.event), op_name(call).c_str(), call.comm,
                  static_cast<long long>(call.seq), static_cast<unsigned long long>(call.count), call.peer,
                  static_cast<unsigned long long>(call.stream), call.group,
                  static_cast<double>(call.called.wall_ns - 1'800'000'000'000'000'000LL) / 1e9,
                  call.returned ? "" : " OPEN");
    if (!file.symbols.empty()) std::printf("  sits in %s\n", file.symbols.back().function.c_str());
  }
  std::printf("cut at %.3f\n", of.cut);
}

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

// Does the finding say what was done, and by whom?
bool is_right(const Run& run, const Fault& fault, const Finding& finding) {
  const auto is_one_of = [&](const std::vector<Kind>& kinds) {
    return std::find(kinds.begin(), kinds.end(), finding.kind) != kinds.end();
  };
  std::set<int> named = blamed(run, finding), shown = named;
  for (const size_t rank : finding.victims) shown.insert(run.ranks[rank].number);
  for (const auto& [rank, call] : finding.actual) shown.insert(run.ranks[rank].number);
  if (!std::includes(shown.begin(), shown.end(), fault.shown.begin(), fault.shown.end())) return false;
  if (fault.beside) return is_one_of(fault.kinds);
  if (is_one_of(fault.blameless) && named.empty()) return true;
  if (!is_one_of(fault.kinds)) return false;
  if (!fault.shifts) return named == fault.may_blame;
  for (const std::set<int>* allowed : {&fault.may_blame, &fault.if_doubtful})
    for (const int rank : *allowed) named.erase(rank);
  return named.empty();
}

// What the verdict may not say: the first such sentence.
std::string wrong_words(const Case& of, const Execution& ran, const Run& run, const Finding& finding) {
  std::set<int> may, doubtful;
  bool beside = false;
  for (const Fault& fault : of.faults) {
    may.insert(fault.may_blame.begin(), fault.may_blame.end());
    doubtful.insert(fault.if_doubtful.begin(), fault.if_doubtful.end());
    beside = beside || fault.beside;
  }
  const std::string name = kind_name(finding.kind);
  if (of.faults.empty() && finding.severity == Severity::warning && finding.kind != Kind::missing_trace)
    return "no fault, and yet a warning: " + finding.summary;
  if (finding.kind == Kind::straggler && !of.loss.any())
    for (const auto& [rank, call] : finding.actual)
      if (ran.waits[static_cast<size_t>(run.ranks[rank].number)] && !may.count(run.ranks[rank].number))
        return "called late, but waits itself: " + finding.summary;
  if (finding.severity != Severity::error || finding.kind == Kind::missing_trace) return "";
  std::set<int> wrong = blamed(run, finding);
  for (const int rank : may) wrong.erase(rank);
  if (finding.confidence != Confidence::certain)
    for (const int rank : doubtful) wrong.erase(rank);
  if (!wrong.empty())
    return name + " blames " + names(wrong) + ", at most " + names(may) + " did anything: " + finding.summary;
  const bool harmless = beside && may.empty();
  if ((of.faults.empty() || harmless) && of.whole)
    return "nothing holds it up, and yet " + name + ": " + finding.summary;
  return "";
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
                       ran.reached[static_cast<size_t>(fault.event)];
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
  const Table table = match(run);
  const Evidence evidence = gather(run, table, {});
  Diagnosis diagnosis = judge(run, table, {}, 0);
  Symbolizer symbolizer;
  explain(evidence, symbolizer, diagnosis);
  outcome.verdict = verdict_sentence(evidence, diagnosis);
  for (const Finding& finding : diagnosis.findings)
    if (outcome.wrong.empty()) outcome.wrong = wrong_words(of, ran, run, finding);
  if (waiting && of.to_the_end && diagnosis.verdict == Verdict::healthy && of.ending == Ending::looked_at)
    outcome.silent = true;
  if (of.faults.size() != 1) return outcome;
  const Fault& fault = of.faults.front();
  for (const Finding& finding : diagnosis.findings) {
    if (&finding != &diagnosis.findings.front() && !fault.beside) break;
    if (!is_right(run, fault, finding)) continue;
    outcome.exact = true;
    outcome.kind = finding.kind;
  }
  return outcome;
}

struct Score {
  int jobs = 0, acted = 0, exact = 0, wrong = 0, whole = 0, whole_exact = 0, silent = 0;
};

std::string faults_of(const Case& of) {
  std::string text;
  for (const Fault& fault : of.faults)
    text += std::string(text.empty() ? "" : " + ") + fault_name(fault.kind) + " of rank " + std::to_string(fault.rank) +
            " at event " + std::to_string(fault.event);
  return text.empty() ? "no fault" : text;
}

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
