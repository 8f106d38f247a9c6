// SPDX-License-Identifier: MIT

#include "reference/train/parallel/unsynchronised.h"

#include "reference/train/parallel/whole_gradients.h"

namespace train {
namespace {

std::vector<Flat> reversed(const std::vector<Flat>& flats) { return {flats.rbegin(), flats.rend()}; }

class Unsynchronised : public UnitGradients {
 public:
  Unsynchronised(const Setup& setup, const std::vector<Flat>& groups, const Comm& shard_group,
                 const Stream& communication)
      : shard_group_(shard_group), groups_(groups), whole_(setup, reversed(groups), communication) {
    whole_.on_reduce([this, &communication](int place, View) {
      const int group = opposite(place);
      shard_group_.reduce_scatter(whole_.gradient(place), shard(group), ncclSum, communication);
      if (then_) then_(group, shard(group));
    });
  }

  void begin_step() override { whole_.begin_step(); }
  void before_backward(int, int) override {}
  void after_backward(int module, int k) override { whole_.after_backward(module, k); }
  void finish() override { whole_.finish(); }
  View shard(int group) const override {
    return groups_[static_cast<size_t>(group)].shard(whole_.gradient(opposite(group)), shard_group_.rank());
  }

 private:
  // A backward pass finishes groups in reverse.
  int opposite(int group) const { return static_cast<int>(groups_.size()) - 1 - group; }

  const Comm& shard_group_;
  const std::vector<Flat> groups_;
  WholeGradients whole_;
};

}  // namespace

std::unique_ptr<UnitGradients> make_unsynchronised(const Setup& setup, const std::vector<Flat>& groups,
                                                   const Comm& shard_group, const Stream& communication) {
  return std::make_unique<Unsynchronised>(setup, groups, shard_group, communication);
}

}  // namespace train
