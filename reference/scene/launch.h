// SPDX-License-Identifier: MIT
//
// Starts the ranks of a scene as a launcher would, and waits for them.

#pragma once

#include "tools/scenario/scenario.h"

namespace lockstep::scene {

struct PlayOptions {
  uint64_t seed = 0;  // 0: every rank keeps its number
  int shift = 0;
  int ranks = 0;      // of a wider job than the file's; see widen_to()
  int board_fd = -1;  // set in a rank's process only
  int rank = -1;      // set in a rank's process only: a rank of the scene
  int launcher_pid = 0;
};

// Runs all ranks and returns the exit status of the whole: the first bad one, 128 + n for signal n, else 0.
int launch_processes(const scenario::Scenario& scenario, const PlayOptions& options);
int launch_threads(const scenario::Scenario& scenario, const PlayOptions& options);

// The body of one rank's process.
int play_one(const scenario::Scenario& scenario, const PlayOptions& options);

}  // namespace lockstep::scene
