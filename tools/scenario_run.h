// SPDX-License-Identifier: MIT
//
// Plays a scenario under `lockstep run` on the host runtime and asks `lockstep diagnose` for its verdict, through the
// same command lines a user has, so that the judge sees nothing but the traces.

#pragma once

#include <string>

#include "tools/scenario/scenario.h"
#include "tools/scenario_judge.h"

namespace lockstep {

struct ScenarioPrograms {
  std::string lockstep, player;
};

// The programs of this installation; an error names the one that is missing.
Result<ScenarioPrograms> find_scenario_programs();

struct ScenarioRun {
  std::string folder;  // holds traces/, run.log, diagnosis.json; made by run_scenario()
  double seconds = 0;  // of the job itself
  bool timed_out = false;
  int run_status = 0;       // exit status of `lockstep run`
  std::string left_behind;  // processes that outlived it; empty = none
  std::string log;          // what the job printed
  int diagnose_status = 0;
  std::string diagnosis;  // JSON
};

// ranks_as: "threads", "processes" or empty for what the file says.
Result<ScenarioRun> run_scenario(const ScenarioPrograms& programs, const scenario::Scenario& scenario,
                                 ScenarioVariant variant, const std::string& ranks_as);

// Deletes the folder of a run and all it holds.
void remove_run(const ScenarioRun& run);

}  // namespace lockstep
