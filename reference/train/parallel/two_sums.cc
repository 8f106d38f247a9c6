// SPDX-License-Identifier: MIT

#include "reference/train/parallel/two_sums.h"

namespace train {
namespace {

class TwoSums : public Strategy {
 public:
  TwoSums(std::unique_ptr<Strategy> dense, std::unique_ptr<Strategy> experts, const Comm& world, bool dense_first,
          bool expert_first)
      : dense_(std::move(dense)), experts_(std::move(experts)), world_(world) {
    take(*dense_, dense_first);
    take(*experts_, expert_first);
  }

  void begin_step(int micro_batches) override {
    dense_->begin_step(micro_batches);
    experts_->begin_step(micro_batches);
  }
  void begin_micro_batch(int k) override {
    dense_->begin_micro_batch(k);
    experts_->begin_micro_batch(k);
  }
  void before_forward(int module, int k) override {
    dense_->before_forward(module, k);
    experts_->before_forward(module, k);
  }
  void after_forward(int module, int k) override {
    dense_->after_forward(module, k);
    experts_->after_forward(module, k);
  }
  void before_backward(int module, int k) override {
    dense_->before_backward(module, k);
    experts_->before_backward(module, k);
  }
  void after_backward(int module, int k) override {
    dense_->after_backward(module, k);
    experts_->after_backward(module, k);
  }
  void finish_gradients() override {
    dense_->finish_gradients();
    experts_->finish_gradients();
  }
  void finish_update() override {
    dense_->finish_update();
    experts_->finish_update();
  }
  std::vector<Owned>& owned() override { return owned_; }
  const Comm& owners() const override { return world_; }
  void gather_all() override {
    dense_->gather_all();
    experts_->gather_all();
  }
  void release_all() override {
    dense_->release_all();
    experts_->release_all();
  }

 private:
  void take(Strategy& strategy, bool first) {
    for (Owned piece : strategy.owned()) {
      piece.counts = strategy.owners().size() > 1 || first;
      owned_.push_back(piece);
    }
  }

  std::unique_ptr<Strategy> dense_, experts_;
  const Comm& world_;
  std::vector<Owned> owned_;
};

}  // namespace

std::unique_ptr<Strategy> make_two_sums(std::unique_ptr<Strategy> dense, std::unique_ptr<Strategy> experts,
                                        const Comm& world, bool dense_first, bool expert_first) {
  return std::make_unique<TwoSums>(std::move(dense), std::move(experts), world, dense_first, expert_first);
}

}  // namespace train
