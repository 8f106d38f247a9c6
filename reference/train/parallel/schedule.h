// SPDX-License-Identifier: MIT
//
// A pipeline schedule is data: for every stage the list of passes it makes, one after another. One runtime
// (pipeline.cc) executes whatever list it is given, one simulator (schedule_simulate.cc) times it, and what is known as
// GPipe, 1F1B, interleaved or zero-bubble is a function of a dozen lines that writes the lists.
//
// A stage holds `chunks` pieces of the model ("virtual stages"): chunk c of stage s is piece c * stages + s, so that a
// micro-batch goes round all stages once for every chunk. Every list visits the micro-batches of a chunk in ascending
// order, forward and backward: gradients are added in that order, which makes all schedules equal bit for bit.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace train {

enum class Pass {
  forward,   // F
  input,     // B: the gradient of the input, for which the previous stage waits
  weight,    // W: the gradients of the weights, for which nobody waits (2401.10241, section 2)
  backward,  // BW: both at once
};

struct Action {
  Pass pass;
  int micro_batch, chunk;
  bool operator==(const Action&) const = default;
};

struct Schedule {
  std::string name;
  int stages = 1, chunks = 1, micro_batches = 1;
  std::vector<std::vector<Action>> actions;  // [stage]
};

// All forward passes, then all backward passes (Huang et al. 2019, 1811.06965, section 2.3).
Schedule gpipe(int stages, int micro_batches);
// A stage starts the backward pass of a micro-batch as soon as it can, and so holds at most `stages - rank`
// micro-batches (Narayanan et al. 2021, 2104.04473, section 2.2.1).
Schedule one_forward_one_backward(int stages, int micro_batches);
// The same over several chunks a stage, which divides the bubble by their number (the same, section 2.2.2).
// micro_batches must be a multiple of stages.
Schedule interleaved(int stages, int micro_batches, int chunks);
// The weight half of the backward pass is put off to where the stage would idle (Qi et al. 2024, 2401.10241, section
// 2.1). `warm_up` 1 is ZB-H1, with the memory of 1F1B; 2 is ZB-H2, with twice that and no bubble inside a stage's
// window where the three passes take equally long and there are at least 2 * stages - 1 micro-batches.
Schedule zero_bubble(int stages, int micro_batches, int warm_up);

// From so many micro-batches on a schedule idles no longer than its formula; with fewer, zero-bubble ones run too, but
// have too little to do while they wait.
int micro_batches_to_fill(std::string_view name, int stages);

// By the name of --schedule: gpipe, 1f1b, interleaved, zero-bubble (ZB-H1), zero-bubble-2 (ZB-H2). The second function
// says in a sentence why there is no such schedule; it is empty where there is one.
Schedule make_schedule(std::string_view name, int stages, int micro_batches, int chunks);
std::string schedule_error(std::string_view name, int stages, int micro_batches, int chunks);

}  // namespace train
