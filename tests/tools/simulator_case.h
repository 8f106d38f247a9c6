// SPDX-License-Identifier: MIT
//
// One job of the simulator: a schedule with its faults, what is lost of its traces, and when it is looked at. And what
// may be said of it: whom a finding names, whether it is right, whether it is wrong.

#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/tools/simulator.h"
#include "tools/job/job.h"
#include "tools/judge/finding.h"

namespace lockstep::test {

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

// With no fault, one, or two.
Case make_case(uint64_t seed, bool lengthy = false);

std::string names(const std::set<int>& ranks);
std::string faults_of(const Case& of);
void print_job(const Case& of, const Execution& ran);

// Whom it names: its culprits, and ranks without a trace.
std::set<int> blamed(const Run& run, const Finding& finding);
bool is_mismatch(Kind kind);

// Somebody other than those to blame has been held for the whole threshold, or for as long as is said.
bool somebody_waits(const Case& of, const Execution& ran, const std::set<int>& except, double at_least = kSimThreshold);

// Does the finding say what was done, and by whom? In one job with the other faults, whose ranks it may name besides.
bool is_right(const Run& run, const Fault& fault, const Finding& finding, const std::vector<Fault>& all);

// The run judged and put into words, as `lockstep diagnose` does it.
struct JudgedRun {
  Diagnosis diagnosis;
  std::string verdict;  // its sentence
};
JudgedRun judge_run(const Run& run);

// What the verdict may not say: the first such sentence.
std::string wrong_words(const Case& of, const Execution& ran, const Run& run, const Finding& finding);

}  // namespace lockstep::test
