// SPDX-License-Identifier: MIT
//
// Many scenarios, some at a time: they mostly sleep. Each is played by a process of its own, which is the reaper of
// what its job leaves behind, so that no run can take another's processes for its own.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/scenario/run.h"

namespace lockstep {

struct PlannedScenario {
  scenario::Scenario scenario;  // as it is played
  ScenarioVariant variant;
};

struct PlayedScenario {
  std::string error;  // empty, or why it could not be played
  ScenarioRun run;
  ScenarioOutcome outcome;
};

// Calls `done` with each as it ends. The folders of the runs are deleted unless they are to be kept.
void play_scenarios(const ScenarioPrograms& programs, const std::vector<PlannedScenario>& plans, int jobs, bool keep,
                    const std::function<void(size_t plan, const PlayedScenario&)>& done);

}  // namespace lockstep
