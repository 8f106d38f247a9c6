// SPDX-License-Identifier: MIT

#include "reference/train/model/model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "reference/train/model/blocks.h"

namespace train {

static std::vector<int> every_module(const Config& config) {
  std::vector<int> numbers(static_cast<size_t>(config.modules()));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

Model::Model(const Config& config, const Groups& groups, const Stream& stream, Memory& memory)
    : Model(config, groups, stream, memory, every_module(config)) {}

Model::Model(const Config& config, const Groups& groups, const Stream& stream, Memory& memory, std::vector<int> held)
    : context_{config, groups, stream, {}}, memory_(memory), every_(config, groups) {
  for (const int number : held) modules_.push_back(make(number));
  for (const auto& parameter : every_.all())
    for (const auto& module : modules_)
      if (std::count(module->parameters().begin(), module->parameters().end(), parameter.get()) > 0) {
        parameters_.push_back(parameter.get());
        break;
      }
  for (int i = 0; i < 2; ++i) turns_.push_back(std::make_unique<Arena>(memory_, Purpose::activations));
}

std::unique_ptr<Module> Model::make(int number) {
  if (number == 0) return make_embedding(context_, every_);
  if (number == config().modules() - 1) return make_head(context_, every_);
  const int64_t layer = (number - 1) / 2;
  if (number % 2 == 1) return make_attention(context_, every_, layer);
  return config().experts > 0 ? make_experts(context_, every_, layer) : make_mlp(context_, every_, layer);
}

Arena& Model::arena(int slot) {
  while (static_cast<size_t>(slot) >= slots_.size())
    slots_.push_back(std::make_unique<Arena>(memory_, Purpose::activations));
  return *slots_[static_cast<size_t>(slot)];
}

void Model::begin_step(int micro_batches, double loss_scale) {
  if (losses_.size != micro_batches) losses_ = memory_.allocate(Purpose::workspace, Dtype::f64, micro_batches);
  fill(context_.cuda(), losses_, 0);
  context_.loss_scale = loss_scale;
}

View Model::forward(Strategy& strategy, ModuleRange range, int slot, int k, const Batch& batch, View input) {
  context_.loss = losses_.part(k, 1);
  context_.micro_batch = k;
  View x = input;
  for (int m = range.begin; m < range.end; ++m) {
    strategy.before_forward(m, k);
    x = modules_[static_cast<size_t>(m)]->forward(slot, batch, x, arena(slot));
    strategy.after_forward(m, k);
  }
  return x;
}

View Model::backward(Strategy& strategy, ModuleRange range, int slot, int k, const Batch& batch, View output_grad) {
  View grad = output_grad;
  for (int m = range.end - 1; m >= range.begin; --m) {
    Module& module = *modules_[static_cast<size_t>(m)];
    std::swap(turns_[0], turns_[1]);
    turns_[0]->reset();  // what the module before last left
    strategy.before_backward(m, k);
    grad = module.backward(slot, batch, grad, *turns_[0]);
    strategy.after_backward(m, k);
  }
  arena(slot).reset();
  return grad;
}

View Model::backward_input(Strategy& strategy, ModuleRange range, int slot, int k, const Batch& batch,
                           View output_grad) {
  View grad = output_grad;
  for (int m = range.end - 1; m >= range.begin; --m) {
    strategy.before_backward(m, k);
    grad = modules_[static_cast<size_t>(m)]->backward_input(slot, batch, grad, arena(slot));
  }
  return grad;
}

void Model::backward_weight(Strategy& strategy, ModuleRange range, int slot, int k, const Batch& batch) {
  for (int m = range.end - 1; m >= range.begin; --m) {
    modules_[static_cast<size_t>(m)]->backward_weight(slot, batch);
    strategy.after_backward(m, k);
  }
  arena(slot).reset();
}

View Model::evaluate(ModuleRange range, Batch batch, View input, View loss) {
  batch.training = false;
  context_.loss = loss;
  View x = input;
  for (int m = range.begin; m < range.end; ++m) {
    std::swap(turns_[0], turns_[1]);
    turns_[0]->reset();
    x = modules_[static_cast<size_t>(m)]->forward(0, batch, x, *turns_[0]);
  }
  return x;
}

size_t Model::activation_bytes() const {
  size_t bytes = 0;
  for (const auto& slot : slots_) bytes += slot->high();
  return bytes;
}

}  // namespace train
