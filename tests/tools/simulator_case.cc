// SPDX-License-Identifier: MIT
#include "tests/tools/simulator_case.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "tools/explain/explain.h"
#include "tools/job/match.h"
#include "tools/judge/rules.h"

namespace lockstep::test {
namespace {

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

}  // namespace

Case make_case(uint64_t seed, bool lengthy) {
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

bool somebody_waits(const Case& of, const Execution& ran, const std::set<int>& except, double at_least) {
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

bool is_right(const Run& run, const Fault& fault, const Finding& finding, const std::vector<Fault>& all) {
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
  if (!fault.shifts && !std::includes(named.begin(), named.end(), fault.may_blame.begin(), fault.may_blame.end()))
    return false;
  std::set<int> others = named;
  for (const Fault& each : all) {
    for (const int rank : each.may_blame) others.erase(rank);
    for (const int rank : each.if_doubtful)
      if (each.shifts) others.erase(rank);
  }
  if (!others.empty() || all.size() == 1 || fault.may_blame.empty()) return others.empty();
  const auto is_its = [&](int rank) { return fault.may_blame.count(rank) || fault.if_doubtful.count(rank); };
  return std::any_of(named.begin(), named.end(), is_its);
}

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

JudgedRun judge_run(const Run& run) {
  const Table table = match(run);
  const Evidence evidence = gather(run, table, {});
  JudgedRun judged{judge(run, table, {}, 0), ""};
  Symbolizer symbolizer;
  explain(evidence, symbolizer, judged.diagnosis);
  judged.verdict = verdict_sentence(evidence, judged.diagnosis);
  return judged;
}

std::string faults_of(const Case& of) {
  std::string text;
  for (const Fault& fault : of.faults)
    text += std::string(text.empty() ? "" : " + ") + fault_name(fault.kind) + " of rank " + std::to_string(fault.rank) +
            " at event " + std::to_string(fault.event);
  return text.empty() ? "no fault" : text;
}

}  // namespace lockstep::test
