// SPDX-License-Identifier: MIT
//
// Gradients that are never whole: what ZeRO-2 and FSDP have in common. Parameters form groups (buckets there, units
// here). A group's gradients are written to a slot; when the last is there the slot is reduce-scattered, in every
// micro-batch, and what comes back is added to the rank's shard. So besides the shards there are only the slots: two
// that groups use in turn, one being reduced while the other is written (one without overlap), and one of its own for
// every group whose parameters are used at both ends of the model, such as tied embeddings: it is open during the whole
// backward pass.

#pragma once

#include <memory>
#include <vector>

#include "reference/train/parallel/flat.h"
#include "reference/train/parallel/unit_gradients.h"

namespace train {

class ShardedGradients : public UnitGradients {
 public:
  // `groups`, of trainable parameters, in the order of the model. `own_slots`: every group has a slot of its own (a
  // pipeline holds gradients of several micro-batches' modules open).
  ShardedGradients(const Setup& setup, std::vector<Flat> groups, const Comm& shard_group, bool own_slots,
                   const Stream& communication);

  void begin_step() override;
  void before_backward(int module, int k) override;
  void after_backward(int module, int k) override;
  void finish() override;

  View shard(int group) const override { return groups_[static_cast<size_t>(group)].shard; }

 private:
  struct Slot {
    View whole, received;
    Event free;
  };
  struct Group {
    Flat flat;
    View shard;
    int home = 0, last = 0;  // first and last module that use it; home's backward pass is the last to add
    int slot = -1;           // where the gradients of the micro-batch under way are; -1: none are
    int own_slot = -1;
    int done = 0;  // micro-batches
    Event written;
  };
  std::vector<bool> open_beside_others() const;
  int new_slot(const std::vector<const Flat*>& users);
  void open(Group& group);
  void reduce(int group);

  const Setup& setup_;
  const Comm& shard_group_;
  const bool own_slots_;
  const Stream& communication_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<int> shared_slots_;
  size_t turn_ = 0;
  std::vector<std::vector<int>> used_by_;  // module -> groups
  Event all_reduced_;
};

}  // namespace train
