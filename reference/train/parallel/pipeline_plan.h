// SPDX-License-Identifier: MIT
//
// What one stage of a pipeline does, in the order in which it is enqueued: a schedule's passes with the messages
// between them, and the memory each uses. Arithmetic only.
//
// Why nothing deadlocks. The simulation gives every message a time, the end of the pass that makes it. A stage posts
// all it sends and receives at one time as one group, and its groups in the order of time, whatever its neighbours do
// meanwhile. So the earliest group that is not done waits for nothing but passes before its time, which wait for
// nothing but groups before theirs. That holds for two stages too, where both directions, and with chunks both ends of
// the model, meet the same peer: what meets at one time is in one group, and what does not is in the same order on both
// sides.

#pragma once

#include "reference/train/parallel/schedule.h"

namespace train {

// One end of a message: the activations of a piece of the model for the next one, or gradients for the one before.
struct Post {
  bool send;
  int peer;                // stage
  bool forward;            // activations
  int micro_batch, chunk;  // of the pass on this stage that made it or that needs it
  int buffer;              // of the inbox or of the outbox
  bool operator==(const Post&) const = default;
};

struct PipelineStep {
  std::vector<Post> posts;  // not empty: a group of messages. Else a pass:
  Action action{};
  int slot = 0;               // memory of this micro-batch and chunk between its passes
  int input = -1;             // buffer of the inbox that holds its activations, -1: the model begins here
  int output_grad = -1;       // likewise, -1: the model ends here, or this is a forward pass
  int output = -1;            // buffer of the outbox, -1: nobody waits for the result
  std::vector<int> releases;  // buffers of the inbox that nobody reads after this pass
};

struct PipelinePlan {
  std::vector<PipelineStep> steps;
  int slots = 0;   // micro-batches of all chunks in flight
  int inbox = 0;   // buffers for what arrives, held until the weight pass that uses it is done
  int outbox = 0;  // buffers for what is on its way
};

PipelinePlan plan_stage(const Schedule& schedule, int stage);

}  // namespace train
