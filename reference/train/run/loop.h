// SPDX-License-Identifier: MIT
//
// The training of one rank: what it is made of, and the loop.

#pragma once

#include <nccl.h>

#include <memory>
#include <string>
#include <vector>

#include "reference/train/model/model.h"
#include "reference/train/parallel/exchange.h"
#include "reference/train/parallel/pipeline.h"
#include "reference/train/run/batches.h"
#include "reference/train/run/communicators.h"
#include "reference/train/run/dumps.h"
#include "reference/train/run/loss_scale.h"
#include "reference/train/run/optimizer.h"
#include "reference/train/run/options.h"
#include "reference/train/run/state.h"
#include "reference/train/run/text.h"

namespace train {

class Training {
 public:
  Training(const Options& options, const Text& text, int rank, int device, const ncclUniqueId& id);
  ~Training();

  void run();

  struct Step {
    int64_t number = 0;  // from 1
    double loss = 0;     // mean over all tokens of the step, of all ranks
    int64_t tokens = 0;  // that were predicted
    double norm = 0, rate = 0, loss_scale = 1;
  };
  // One step, from the sampler's next sequence on. Returns when everything is done.
  Step step();
  void dump_first();  // parameters before the first step
  double evaluate();  // mean loss over the held-out samples

  TrainingState state() const;
  // Goes on from there. Parameters and moments are the caller's matter. Throws Refusal for what is another training's.
  void restore(const TrainingState& state);

  const Memory& memory() const { return memory_; }

 private:
  void make_model();
  void make_pipeline();
  void passes();
  void evaluate_batch(int k);
  void sum_statistics();
  void tell(const Step& step, double seconds) const;
  void tell_not_finite(const Step& step) const;
  void tell_loss_scale(const Step& step) const;

  const Options options_;
  const Text& text_;
  const Mesh mesh_;
  const int rank_;
  const Place place_;
  // In this order: what comes first is used by what comes later and outlives it.
  Communicators comms_;
  Comm alone_;  // a group of one
  Memory memory_;
  const Stream compute_;
  Exchange exchange_;
  const Config config_;
  std::unique_ptr<Model> model_;
  std::vector<ModuleRange> chunks_;  // of the model, a pipeline stage's pieces
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Optimizer> optimizer_;
  Sampler sampler_;
  Dumps dumps_;
  View statistics_;         // sum of losses and number of tokens of the step, on the device
  double* told_ = nullptr;  // the same on the host
  LossScale loss_scale_;
  int64_t steps_done_ = 0;
  View arriving_;  // activations of the stage before, in evaluations
};

// Prints Memory::high by purpose.
std::string memory_table(const Memory& memory);

}  // namespace train
