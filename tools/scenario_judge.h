// SPDX-License-Identifier: MIT
//
// Is the verdict on a scenario the right one? Pure: a scenario, how it was run, and the text that `diagnose --json`
// printed.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/scenario/scenario.h"

namespace lockstep {

struct ScenarioVariant {
  uint64_t seed = 0;  // of the permutation; 0 = as written
  int shift = 0;
};

// What is counted over many scenarios. A part that a scenario does not mention counts as neither right nor wrong.
struct ScenarioScore {
  int runs = 0, right = 0;
  int kinds = 0, kinds_right = 0;
  int culprits = 0, culprits_right = 0;
  int calls = 0, calls_right = 0;  // communicator, operation, number and step
  int false_accusations = 0;       // ranks blamed by an error finding that the scenario does not blame

  void add(const ScenarioScore& other);
};

struct ScenarioOutcome {
  std::vector<std::string> differences;  // empty: the verdict is right
  std::string verdict;                   // the tool's, in half a line
  ScenarioScore score;
};

ScenarioOutcome judge_scenario(const scenario::Scenario& scenario, ScenarioVariant variant,
                               const std::string& diagnosis_json, int diagnose_status);

std::string describe(const ScenarioScore& score);

}  // namespace lockstep
