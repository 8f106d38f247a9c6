// SPDX-License-Identifier: MIT
//
// Jobs with two faults, with all their evidence, looked at when nothing moves any more. What each fault does is known
// by playing the job once more without it: it *holds up* a rank that then gets further, and calls *differ* where all
// whom the call concerns have made it. Every such fault must be found, with its kind and its ranks, though a finding
// may name the ranks of both. Where neither alone holds anybody up (both stay away from one call), one must be found.
//
// A fault may hide the other, and then the other need not be found:
//
//   - it never comes to it, or nobody gets to where it would matter: that is what playing it without the fault tells
//   - both are in one place of a program, so that there is no job with one of them
//   - a circle, or work that all are in, where the first finding tells of the other fault: its ranks wait for that, too
//   - a call left out by a rank that is held up itself: it might yet come
//   - what was held up by a rank that has ended, whatever else that rank did; and a call that somebody had not started
//     when another member ended in it
//   - calls that differ, behind an earlier fault on the same communicator: from there on nothing pairs up any more
//
// LOCKSTEP_SIM_SEED=N prints one job and its verdict.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>

#include "tests/tools/simulator_case.h"
#include "tools/judge/rules.h"

namespace lockstep::test {
namespace {

using Program = std::vector<Act>;

// What changed from one program to another, as one piece: [begin, end) of the first became [begin, new_end).
struct Edit {
  size_t begin = 0, end = 0, new_end = 0;
  bool any() const { return end > begin || new_end > begin; }
};

Edit edit_of(const Program& before, const Program& after) {
  Edit edit{0, before.size(), after.size()};
  while (edit.begin < edit.end && edit.begin < edit.new_end && before[edit.begin] == after[edit.begin]) edit.begin++;
  while (edit.end > edit.begin && edit.new_end > edit.begin && before[edit.end - 1] == after[edit.new_end - 1])
    edit.end--, edit.new_end--;
  return edit;
}

// The program with the second edit alone; nullopt where the two touch.
std::optional<Program> without_first(const Program& none, const Program& first, const Program& both) {
  const Edit one = edit_of(none, first), two = edit_of(first, both);
  if (!one.any()) return both;
  if (!two.any()) return none;
  Program made = none;
  const bool behind = two.begin > one.new_end, before = two.end < one.begin;
  if (!behind && !before) return std::nullopt;
  const auto place = [&](size_t at) { return static_cast<std::ptrdiff_t>(behind ? at - one.new_end + one.end : at); };
  made.erase(made.begin() + place(two.begin), made.begin() + place(two.end));
  made.insert(made.begin() + place(two.begin), both.begin() + static_cast<std::ptrdiff_t>(two.begin),
              both.begin() + static_cast<std::ptrdiff_t>(two.new_end));
  return made;
}

// Does every rank make a communicator before it calls on it?
bool is_playable(const Program& program) {
  std::set<int> made;
  for (const Act& act : program) {
    if (act.what == Do::init || act.what == Do::init_fails) made.insert(act.comm);
    if (act.comm >= 0 && !made.count(act.comm)) return false;
  }
  return true;
}

struct Pair {
  Case job;
  std::array<std::optional<Schedule>, 2> without;  // the one fault, and the other
};

Schedule with_programs(Schedule schedule, std::vector<Program> programs) {
  schedule.programs = std::move(programs);
  return schedule;
}

std::optional<Schedule> without_first(const Schedule& none, const Schedule& first, const Schedule& both) {
  std::vector<Program> programs;
  for (size_t rank = 0; rank < none.programs.size(); rank++) {
    std::optional<Program> program = without_first(none.programs[rank], first.programs[rank], both.programs[rank]);
    if (!program || !is_playable(*program)) return std::nullopt;
    programs.push_back(std::move(*program));
  }
  return with_programs(both, std::move(programs));
}

bool is_end(const Fault& fault) { return fault.kind == FaultKind::dies || fault.kind == FaultKind::leaves; }

std::optional<Fault> some_fault(Random& random, Schedule& schedule) {
  const FaultKind kind = random.pick(all_faults());
  if (kind == FaultKind::none) return std::nullopt;
  std::optional<Fault> fault = inject(random, kind, schedule);
  if (fault && fault->alone) return std::nullopt;
  return fault;
}

// nullopt where the two do not go together.
std::optional<Pair> make_pair_of_faults(uint64_t seed) {
  Random random(seed * 2 + 1'000'000'007);
  const Schedule none = random_schedule(random);
  Schedule first = none;
  const std::optional<Fault> one = some_fault(random, first);
  if (!one) return std::nullopt;
  Schedule both = first;
  const std::optional<Fault> two = some_fault(random, both);
  if (!two || one->event == two->event) return std::nullopt;
  Pair pair;
  Case& job = pair.job;
  job.seed = seed;
  job.faults = {*one, *two};
  pair.without[0] = without_first(none, first, both);
  pair.without[1] = with_programs(both, first.programs);
  job.schedule = std::move(both);
  const double end = execute(job.schedule, seed, std::numeric_limits<double>::infinity(), {}).end;
  job.cut = end + kSimThreshold * random.real(1.1, 3);
  if (random.chance(0.2)) job.ending = Ending::torn_down;
  const bool ends = std::any_of(job.faults.begin(), job.faults.end(), is_end);
  job.threads = random.chance(0.15) && !ends;
  return pair;
}

// May all that this fault does follow from the other as well?
bool is_hidden(const Case& of, const Fault& fault, const Fault& other) {
  if (fault.kind == FaultKind::dies) return false;
  const std::vector<int>& members = of.schedule.comms[static_cast<size_t>(fault.comm)].ranks;
  if (is_end(other) && fault.kind == FaultKind::never_starts)
    return std::count(members.begin(), members.end(), other.rank);
  if (is_end(other) && other.rank == fault.rank) return true;
  const bool differ = other.shifts || !other.parties.empty();
  return differ && other.comm == fault.comm && other.event < fault.event;
}

// Of those who wait, who gets further without the fault, and who comes to its end?
struct Held {
  std::set<int> further, freed;
};

Held held_up(const Pair& pair, size_t which, const Execution& ran) {
  Held held;
  if (!pair.without[which]) return held;
  const Case& of = pair.job;
  const Execution other = execute(*pair.without[which], of.seed, std::numeric_limits<double>::infinity(), {},
                                  Ending::looked_at, of.threads);
  for (int rank = 0; rank < of.schedule.ranks; rank++) {
    const size_t at = static_cast<size_t>(rank);
    const bool waits = ran.waits[at] && of.cut - ran.last_moved[at] >= kSimThreshold;
    if (!waits || other.done_to[at] <= ran.done_to[at]) continue;
    held.further.insert(rank);
    if (!other.waits[at]) held.freed.insert(rank);
  }
  return held;
}

bool is_circle(const Fault& fault) {
  return (fault.may_blame.empty() && fault.parties.empty()) || fault.kind == FaultKind::wider_comm;
}

// Does the fault hold up others, who would otherwise get further? What of it might yet come shows nothing.
bool holds_up(const Pair& pair, size_t which, const Execution& ran) {
  const Fault& fault = pair.job.faults[which];
  if (!fault.sharp && !fault.shifts) return false;
  const Held held = held_up(pair, which, ran);
  if (is_circle(fault)) return !held.freed.empty();
  const bool waits = ran.waits[static_cast<size_t>(fault.rank)];
  if (fault.shifts && waits) return false;
  return !std::includes(fault.may_blame.begin(), fault.may_blame.end(), held.further.begin(), held.further.end());
}

// Calls that differ are on record, on a communicator on which nothing went wrong before.
bool differs(const Pair& pair, size_t which, const Execution& ran) {
  const Fault& fault = pair.job.faults[which];
  if (!fault.sharp || fault.parties.empty()) return false;
  if (static_cast<size_t>(fault.event) >= ran.reached.size()) return false;
  const std::set<int>& reached = ran.reached[static_cast<size_t>(fault.event)];
  return std::includes(reached.begin(), reached.end(), fault.parties.begin(), fault.parties.end());
}

struct Outcome {
  std::array<bool, 2> due{}, found{}, first{};  // by fault; the first finding is right
  std::array<bool, 2> circle{};
  bool waits = false, root = false;  // somebody does; the first finding speaks of one of the two
  bool open = false;                 // it says that nobody can be named
  std::string wrong, verdict;
};

void look_at(const Case& of, const Execution& ran, const Run& run, Outcome& outcome) {
  const auto [diagnosis, verdict] = judge_run(run);
  outcome.verdict = verdict;
  for (const Finding& finding : diagnosis.findings) {
    if (outcome.wrong.empty()) outcome.wrong = wrong_words(of, ran, run, finding);
    for (size_t which = 0; which < 2; which++) {
      const std::vector<Kind>& kinds = of.faults[which].kinds;
      const bool names_nobody = finding.culprits.empty() && std::count(kinds.begin(), kinds.end(), finding.kind) != 0;
      outcome.open = outcome.open || finding.kind == Kind::stalled_together || finding.kind == Kind::init_incomplete;
      if (names_nobody && &finding == &diagnosis.findings.front()) outcome.root = true;
      if (!is_right(run, of.faults[which], finding, of.faults)) continue;
      outcome.found[which] = true;
      if (&finding == &diagnosis.findings.front()) outcome.root = outcome.first[which] = true;
    }
    if (std::getenv("LOCKSTEP_SIM_SEED"))
      std::printf("%s: %s, since %.3f\n", kind_name(finding.kind), finding.summary.c_str(),
                  static_cast<double>(finding.since.wall_ns - 1'800'000'000'000'000'000LL) / 1e9);
  }
}

Outcome play(const Pair& pair) {
  const Case& of = pair.job;
  Execution ran = execute(of.schedule, of.seed, of.cut, of.loss, of.ending, of.threads);
  if (std::getenv("LOCKSTEP_SIM_SEED")) print_job(of, ran);
  Outcome outcome;
  std::set<int> either;
  for (size_t which = 0; which < 2; which++) {
    outcome.circle[which] = is_circle(of.faults[which]);
    outcome.due[which] = !is_hidden(of, of.faults[which], of.faults[1 - which]) &&
                         (holds_up(pair, which, ran) || differs(pair, which, ran));
    either.insert(of.faults[which].may_blame.begin(), of.faults[which].may_blame.end());
  }
  outcome.waits = somebody_waits(of, ran, either);
  const std::vector<Run> runs = assemble_runs(std::move(ran.processes));
  look_at(of, ran, runs.back(), outcome);
  return outcome;
}

std::string complaint(const Outcome& outcome) {
  if (!outcome.wrong.empty()) return outcome.wrong;
  for (size_t which = 0; which < 2; which++)
    if (outcome.due[which] && !outcome.found[which] &&
        !(outcome.circle[which] && (outcome.first[1 - which] || outcome.open)))
      return std::string("the ") + (which ? "second" : "first") + " was not found";
  const bool any_due = (outcome.due[0] && !outcome.circle[0]) || (outcome.due[1] && !outcome.circle[1]);
  if (outcome.waits && !outcome.root && (any_due || !outcome.open)) return "the first finding is neither of the two";
  return "";
}

TEST(Simulator, OfTwoFaultsEachThatShowsIsFound) {
  const char* one = std::getenv("LOCKSTEP_SIM_SEED");
  const char* count = std::getenv("LOCKSTEP_SIM_COUNT");
  const uint64_t first = one ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t last = one ? first : count ? std::strtoull(count, nullptr, 10) : 2000;
  int jobs = 0, due = 0, both_due = 0, waits = 0, bad = 0;
  for (uint64_t seed = first; seed <= last; seed++) {
    const std::optional<Pair> pair = make_pair_of_faults(seed);
    if (!pair) continue;
    const Outcome outcome = play(*pair);
    jobs++;
    due += outcome.due[0] + outcome.due[1];
    both_due += outcome.due[0] && outcome.due[1];
    waits += outcome.waits;
    const std::string said = complaint(outcome);
    if (said.empty()) continue;
    if (++bad > 20) continue;
    ADD_FAILURE() << "LOCKSTEP_SIM_SEED=" << seed << ": " << faults_of(pair->job) << ", " << pair->job.schedule.ranks
                  << " ranks" << (pair->job.ending == Ending::torn_down ? ", torn down" : "")
                  << (pair->job.threads ? ", threads" : "") << "\n  " << said << "\n  " << outcome.verdict;
  }
  std::printf("%d jobs with two faults, %d faults to be found, in %d jobs both; somebody waits in %d; wrong: %d\n",
              jobs, due, both_due, waits, bad);
  EXPECT_EQ(bad, 0);
  EXPECT_TRUE(one || both_due > 0);
}

}  // namespace
}  // namespace lockstep::test
