// SPDX-License-Identifier: MIT
//
// Sizes that no machine has are refused before anything is allocated. What is counted is the least that a rank must
// have, by the formulas of docs/trainer.md: values, gradients and optimizer state of its part of the model, activations
// of one micro-batch, tokens of all. Slots, buffers and the text come on top of it. What a machine has is its memory,
// or what control groups leave of it to this process.

#pragma once

#include "reference/train/run/options.h"

namespace train {

struct Needed {
  double parameters = 0;                           // of the rank's part of the model, before sharding
  double states = 0, activations = 0, tokens = 0;  // bytes
  double bytes() const { return states + activations + tokens; }
};
// Of a rank with the embeddings, or without them (a later pipeline stage).
Needed least_memory(const Options& options, bool embeddings);

// Throws Refusal, naming the number that is too large. `ranks` of this machine.
void check_memory(const Options& options, int ranks);

// The same for --save-init, which holds the whole model's first values on one rank, and what is written of them.
void check_memory_to_save(const Options& options);

}  // namespace train
