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

// How a scene is played and judged; none of this may change the verdict, other than that ranks have other numbers and
// calls come later.
struct ScenarioVariant {
  uint64_t seed = 0;  // of the permutation; 0 = as written
  int shift = 0;
  int ranks = 0;              // in a job of so many, where the file says what the further ranks do
  std::string ranks_as = {};  // "threads", "processes" or empty for what the file says
  bool wrapped = false;       // small rings, and so many agreed steps in front that they wrap
  bool restarted = false;     // after another life of the job in the same folder, with the ranks numbered otherwise
  bool teardown = false;      // after the verdict watchdogs abort some victims, and a launcher ends the rest
  bool elsewhere = false;     // judged again with the traces under other names, in other folders
  bool with_losses = false;   // judged again without the trace of each rank in turn
};

// The scene that is played then.
scenario::Scenario as_played(scenario::Scenario scenario, ScenarioVariant& variant);

// Why a scene cannot be played so, in one clause; empty when it can.
std::string why_not(const scenario::Scenario& scenario, const ScenarioVariant& variant);

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

// The verdict without the trace of one rank (of the world): it may be less certain, and never blames another.
ScenarioOutcome judge_with_loss(const scenario::Scenario& scenario, ScenarioVariant variant, int lost,
                                const std::string& diagnosis_json, int diagnose_status);

std::string describe(const ScenarioScore& score);

}  // namespace lockstep
