// SPDX-License-Identifier: MIT
//
// One rank's part of the model: its modules, their parameters, and the passes over them.
//
// Modules are numbered through the whole model (0 embedding, 1 + 2 i attention and 2 + 2 i MLP of layer i, last the
// head). A rank holds some of them, in ascending order: all, or those of its pipeline stage, whose chunks are ranges of
// the list. The strategy decides where values and gradients of parameters lie and is asked before and told after every
// module (strategy.h); `module` in its calls is a place in this list.
//
// Memory. What the forward pass of a micro-batch saves lies in the arena of its slot until its backward pass is done.
// What a whole backward pass (both halves, module by module) needs for itself lies in two small arenas used in turn,
// for a gradient is needed by the next module only; a split backward pass keeps it in the slot, since the second half
// reads it later.

#pragma once

#include <memory>
#include <vector>

#include "reference/train/core/device.h"
#include "reference/train/core/module.h"
#include "reference/train/core/strategy.h"
#include "reference/train/model/context.h"
#include "reference/train/model/parameters.h"

namespace train {

struct ModuleRange {
  int begin = 0, end = 0;  // places in Model::modules()
};

class Model {
 public:
  // `held`: the global numbers of this rank's modules, ascending. `stream` is the compute stream.
  Model(const Config& config, const Groups& groups, const Stream& stream, Memory& memory, std::vector<int> held);
  // The whole model on this rank.
  Model(const Config& config, const Groups& groups, const Stream& stream, Memory& memory);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const Config& config() const { return context_.config; }
  const std::vector<std::unique_ptr<Module>>& modules() const { return modules_; }
  ModuleRange all() const { return {0, static_cast<int>(modules_.size())}; }
  // Parameters of the modules above, each once, in forward order. Whoever sets `value` and `grad` is the strategy.
  const std::vector<Parameter*>& parameters() const { return parameters_; }

  // Forgets the losses of the last step. `micro_batches` is the same in every step; `loss_scale` multiplies all
  // gradients.
  void begin_step(int micro_batches, double loss_scale = 1);
  // Who sees the activations of forward passes from now on (watch.h); null: nobody.
  void watch(Watcher* watcher) { context_.watcher = watcher; }
  // The passes of micro-batch k over some modules. `input` and `output_grad` are empty for the embedding and the head.
  // A forward pass returns the activations for the next module, which live until the slot's backward pass is done; a
  // backward pass the gradient of the input, which lives until the next backward pass of this model begins.
  View forward(Strategy& strategy, ModuleRange range, int slot, int k, const Batch& batch, View input);
  View backward(Strategy& strategy, ModuleRange range, int slot, int k, const Batch& batch, View output_grad);
  // The same in two halves. The returned gradient lives until backward_weight of this slot, which must come last.
  View backward_input(Strategy& strategy, ModuleRange range, int slot, int k, const Batch& batch, View output_grad);
  void backward_weight(Strategy& strategy, ModuleRange range, int slot, int k, const Batch& batch);

  // Without dropout, and nothing is kept. Parameters must be there (Strategy::gather_all). Adds the sum of losses to
  // `loss`, a double, where the range holds the head.
  View evaluate(ModuleRange range, Batch batch, View input, View loss);

  // [micro_batches] doubles: the sum of losses of each micro-batch, on ranks that hold the head, else 0. Under tensor
  // parallelism every rank of the group has the same.
  View losses() const { return losses_; }
  // Most bytes of activations that were in use at once in slot arenas, summed over slots.
  size_t activation_bytes() const;

 private:
  std::unique_ptr<Module> make(int number);
  Arena& arena(int slot);

  Context context_;
  Memory& memory_;
  Parameters every_;  // of the whole model; parameters_ are those in use
  std::vector<std::unique_ptr<Module>> modules_;
  std::vector<Parameter*> parameters_;
  std::vector<std::unique_ptr<Arena>> slots_;
  std::vector<std::unique_ptr<Arena>> turns_;  // two
  View losses_;
};

}  // namespace train
