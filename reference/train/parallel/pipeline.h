// SPDX-License-Identifier: MIT
//
// Pipeline parallelism (Huang et al. 2019, 1811.06965; Narayanan et al. 2021, 2104.04473, section 2.2): the model is
// cut into pieces of consecutive modules, one or several a stage, and micro-batches move through them. This is the
// runtime: it executes the plan of a stage (pipeline_plan.h), whatever schedule it came from.
//
// Passes are enqueued on the compute stream, messages on a stream for each channel (pipeline_channels.h). Results are
// copied to an outbox before they are sent, so that the memory of a pass is free for the next one; what arrives stays
// in its inbox buffer until the weight pass that reads it last is done. Events order the streams: made (a result is in
// the outbox), arrived and sent (a message is done), and released (the last reader of an inbox buffer is done).

#pragma once

#include <functional>
#include <vector>

#include "reference/train/core/comm.h"
#include "reference/train/core/device.h"
#include "reference/train/parallel/pipeline_channels.h"
#include "reference/train/parallel/pipeline_plan.h"

namespace train {

// The passes of a stage over one of its chunks. All enqueue on the compute stream. The first two return what the
// neighbour waits for: activations, or the gradient of the input; empty at the ends of the model.
struct Passes {
  std::function<View(int slot, int micro_batch, int chunk, View input)> forward;
  std::function<View(int slot, int micro_batch, int chunk, View output_grad)> backward;        // both halves
  std::function<View(int slot, int micro_batch, int chunk, View output_grad)> backward_input;  // the first
  std::function<void(int slot, int micro_batch, int chunk)> backward_weight;                   // the second
};

// How long every pass of a chunk sleeps beside what it computes: bubbles and overlap can be measured where there are
// fewer processors than stages. Microseconds; 0: not at all.
struct FakeCompute {
  double forward = 0, input = 0, weight = 0;
};

class Pipeline {
 public:
  // All stages together. `elements`: of one message, the activations of a micro-batch between two modules on this rank.
  Pipeline(const Schedule& schedule, const Comm& pp, const Stream& compute, Memory& memory, Dtype dtype,
           int64_t elements, FakeCompute fake = {});

  // Enqueues one step: every pass of every micro-batch of this stage. Later work of the compute stream comes after all
  // messages.
  void run(const Passes& passes);

  const PipelinePlan& plan() const { return plan_; }

 private:
  void receive(const Post& post);
  void send(const Post& post, View result);
  void compute(const PipelineStep& step, const Passes& passes);
  void sleep(double microseconds);

  const PipelinePlan plan_;
  const Stream& compute_;
  const FakeCompute fake_;
  Channels channels_;
  std::vector<View> inbox_, outbox_;
  std::vector<Event> arrived_, released_, sent_, made_;  // by buffer
};

}  // namespace train
