// SPDX-License-Identifier: MIT
//
// For unit u of the model, in every micro-batch:
//
//   forward    p_u = all-gather of its shards      compute      forget p_u
//   backward   p_u = all-gather of its shards      compute      g_u = reduce-scatter, added to the shard; forget both
//
// FULL_SHARD and ZeRO-3: 3 P e bytes of calls a micro-batch. FSDP keeps the root unit, with which the backward pass
// begins again: 2 U - 1 all-gathers of U units; ZeRO-3 does not: 2 U. SHARD_GRAD_OP keeps every unit from forward to
// backward pass: U all-gathers. HYBRID_SHARD shards over groups of n_s ranks and sums the shards over the n / n_s
// replicas, once a step: an all-reduce of P e / n_s more. Under no_sync gradients stay whole until the last
// micro-batch: P e of reduce-scatters a step, not a micro-batch (unsynchronised.h).
//
// Memory in fp32: 16 P / n bytes, and slots: the root and one unit whole (two with prefetch), the same of gradients
// (two with overlap). Units are padded to a multiple of the ranks.

#include "reference/train/parallel/fsdp.h"

#include "reference/train/parallel/gathered_units.h"
#include "reference/train/parallel/sharded_gradients.h"
#include "reference/train/parallel/unsynchronised.h"

namespace train {
namespace {

class Fsdp : public Strategy {
 public:
  Fsdp(const Setup& setup, const FsdpSettings& settings)
      : setup_(setup),
        settings_(settings),
        shard_group_(settings.shard != nullptr ? *settings.shard : setup_.group),
        units_(make_units(setup_, settings.wrap)),
        values_(setup_, settings, units_, shard_group_, communication_),
        gradients_(make_gradients()) {
    int group = 0;
    for (size_t u = 0; u < units_.units.size(); ++u) {
      if (units_.units[u].frozen) continue;
      const View shard = values_.shard(static_cast<int>(u));
      add_owned(owned_, values_.flat(static_cast<int>(u)), shard_group_.rank(), shard, gradients_->shard(group++),
                make_state(setup_, shard));
    }
    if (settings.replicas != nullptr)
      gradients_->then([this](int, View shard) { settings_.replicas->all_reduce(shard, ncclSum, communication_); });
  }

  void begin_step(int) override {
    values_.begin_step();
    gradients_->begin_step();
  }
  void before_forward(int module, int) override { values_.before_forward(module); }
  void after_forward(int module, int) override { values_.after_forward(module); }
  void before_backward(int module, int k) override {
    values_.before_backward(module);
    gradients_->before_backward(module, k);
  }
  void after_backward(int module, int k) override {
    gradients_->after_backward(module, k);
    values_.after_backward(module);
  }
  void finish_gradients() override {
    gradients_->finish();
    values_.finish_step();
  }

  std::vector<Owned>& owned() override { return owned_; }
  const Comm& owners() const override { return shard_group_; }
  void gather_all() override { values_.gather_all(); }
  void release_all() override { values_.release_all(); }

 private:
  std::vector<Flat> trainable() const {
    std::vector<Flat> flats;
    for (size_t u = 0; u < units_.units.size(); ++u)
      if (!units_.units[u].frozen) flats.push_back(values_.flat(static_cast<int>(u)));
    return flats;
  }

  std::unique_ptr<UnitGradients> make_gradients() const {
    if (settings_.no_sync) return make_unsynchronised(setup_, trainable(), shard_group_, communication_);
    return std::make_unique<ShardedGradients>(setup_, trainable(), shard_group_, settings_.keep_for_step,
                                              communication_);
  }

  const Setup setup_;
  const FsdpSettings settings_;
  const Comm& shard_group_;
  const Units units_;
  Stream own_;
  const Stream& communication_ = setup_.communication(own_);
  GatheredUnits values_;
  std::unique_ptr<UnitGradients> gradients_;
  std::vector<Owned> owned_;
};

}  // namespace

std::unique_ptr<Strategy> make_fsdp(const Setup& setup, const FsdpSettings& settings) {
  return std::make_unique<Fsdp>(setup, settings);
}

}  // namespace train
