// SPDX-License-Identifier: MIT
//
// What a hung job goes through in practice before anybody looks at its traces: the watchdogs of some ranks abort them,
// then a launcher notices, asks the rest to end, and kills those that do not. None of that is the cause of anything.

#pragma once

#include <sys/types.h>

#include <chrono>
#include <random>
#include <set>
#include <string>

#include "tools/scenario/scenario.h"

namespace lockstep {

class ScenarioTeardown {
 public:
  // `run` is the process of `lockstep run`. Ranks that the scene blames are left to the launcher.
  ScenarioTeardown(pid_t run, std::string traces, const scenario::Scenario& scenario, uint64_t seed);

  // Called again and again while the job runs; begins once a verdict was printed.
  void look();

 private:
  enum class Stage { waiting, aborted, asked, killed };
  void abort_some();
  void send_to_all(int signal);

  const pid_t run_;
  const std::string traces_;
  std::set<int> blamed_;
  std::set<std::string> old_marks_;
  std::mt19937_64 random_;
  Stage stage_ = Stage::waiting;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace lockstep
