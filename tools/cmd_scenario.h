// SPDX-License-Identifier: MIT
//
// `lockstep scenario FILE...`: play hang scenarios on the host runtime and check the verdicts.

#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct ScenarioOptions {
  std::vector<std::string> files;
  std::string permute = "0";  // a seed, or "random"
  std::string shift = "0";    // a number of steps, or "random"
  std::string ranks_as;       // "threads", "processes" or empty for what the file says
  bool keep = false, json = false;
};

// Prints what happened and returns the exit status: 0 all right, 1 a verdict differs, 2 a file cannot be used.
int run_scenarios(const ScenarioOptions& options);

}  // namespace lockstep
