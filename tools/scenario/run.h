// SPDX-License-Identifier: MIT
//
// Plays a scenario under `lockstep run` on the host runtime and asks `lockstep diagnose` for its verdict, through the
// same command lines a user has, so that the judge sees nothing but the traces.

#pragma once

#include <string>

#include "tools/scenario/judge.h"
#include "tools/scenario/scenario.h"

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
  bool unasked = false;     // a rank was to say when the verdict is asked for, and none did
  int diagnose_status = 0;
  std::string diagnosis;  // JSON
};

// The scenario as it is played: see as_played().
Result<ScenarioRun> run_scenario(const ScenarioPrograms& programs, const scenario::Scenario& scenario,
                                 const ScenarioVariant& variant);

struct JudgedFolder {
  int status = 0;
  std::string diagnosis;
};
JudgedFolder diagnose(const ScenarioPrograms& programs, const std::string& traces);

// Judges the traces of a run again, as they may reach somebody: under other names, or with one lost. Adds to the
// outcome what differs then.
void judge_again(const ScenarioPrograms& programs, const scenario::Scenario& scenario, const ScenarioVariant& variant,
                 const ScenarioRun& run, ScenarioOutcome& outcome);

// Deletes the folder of a run and all it holds.
void remove_run(const ScenarioRun& run);

}  // namespace lockstep
