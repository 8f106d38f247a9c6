// SPDX-License-Identifier: MIT
//
// What one stage of a pipeline does, in the order in which it is enqueued: a schedule's passes with the messages
// between them, and the memory each uses. Arithmetic only; no pass has a length here, so that the plan is right for
// any.
//
// A stage has four channels, each with an order of its own and independent of the others: activations from the stage
// before and to the one after, gradients the other way (between the ends of the model, too, where stages have several
// chunks). What is made is sent at once. A receive is posted as soon as there is memory for what comes, long before the
// pass that needs it, and nothing but that pass waits for it.
//
// Why nothing deadlocks. Both ends of a channel see its messages in the same order. A receive waits for memory that
// passes before its own pass give back, and a send for its receive: so whoever waits waits for passes that the schedule
// has earlier, and a schedule that does not wait for itself (schedule_simulate.h) comes to its end.

#pragma once

#include "reference/train/parallel/schedule.h"

namespace train {

// One end of a message: the activations of a piece of the model for the next one, or gradients for the one before.
struct Post {
  bool forward;            // activations
  int micro_batch, chunk;  // of the pass on this stage that made it or that needs it
  int buffer;              // of the outbox or of the inbox
  bool operator==(const Post&) const = default;
};

struct PipelineStep {
  std::vector<Post> receives;  // posted before the pass
  Action action{};
  int slot = 0;               // memory of this micro-batch and chunk between its passes
  int input = -1;             // buffer of the inbox that holds its activations, -1: the model begins here
  int output_grad = -1;       // likewise, -1: the model ends here, or this is a forward pass
  std::vector<Post> sends;    // the result, after the pass: one, or none where nobody waits for it
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
