// SPDX-License-Identifier: MIT
//
// When does each pass of a schedule run, if passes take exactly so long and messages no time? Exact integers, so that a
// bubble equals its formula or the schedule is wrong; the same times order the messages of the runtime (pipeline.cc)
// and draw --print-schedule.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/train/parallel/schedule.h"

namespace train {

// How long the passes of one chunk take. A backward pass that is not split takes input + weight.
struct Costs {
  int64_t forward = 1, input = 1, weight = 1;
};

struct Span {
  int64_t begin = 0, end = 0;
};

struct Timing {
  std::vector<std::vector<Span>> spans;  // [stage][place in its list]
  int64_t makespan = 0;
  std::vector<int64_t> idle;    // [stage] makespan less what the stage computes
  std::vector<int64_t> window;  // [stage] the same inside its own window, from its first pass to the end of its last
  std::vector<int> in_flight;   // [stage] most micro-batches (of all chunks) between forward and weight pass at once
};

// A schedule that waits for itself has no timing: `stuck` then names a stage and the pass it never comes to, and the
// rest is empty.
Timing simulate(const Schedule& schedule, const Costs& costs, std::string* stuck = nullptr);

// "F3" forward of micro-batch 3, "B" and "W" the halves of backward, "D" both; ' after the number for each chunk beyond
// the first.
std::string label(const Action& action);

// One line a stage, a column being as long as the shortest pass. Then makespan, bubble and what is in flight, exactly.
// `microseconds`: how long a unit of cost is; 0: times are told in units.
std::string draw(const Schedule& schedule, const Costs& costs = {}, double microseconds = 0);

}  // namespace train
