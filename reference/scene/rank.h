// SPDX-License-Identifier: MIT
//
// One rank of a scene: an ordinary NCCL program that happens to read what to do from a file. It knows of Lockstep only
// the marks of <lockstep.h>.

#pragma once

#include <vector>

#include "reference/scene/board.h"
#include "tools/scenario/scenario.h"

namespace lockstep::scene {

struct Stage {
  const scenario::Scenario& scenario;
  std::vector<int> world_rank;  // of each rank of the scene
  int shift = 0;                // agreed steps in front
  Board& board;
  BoardPlan plan;
  int launcher_pid = 0;  // 0: the ranks are threads of this process
};

// Plays the rank to its end: communicators, extra steps, the program, and an orderly teardown. Returns when the program
// ends; statements such as `exit` or `kill` do not return.
void play_rank(Stage& stage, int scene_rank);

}  // namespace lockstep::scene
