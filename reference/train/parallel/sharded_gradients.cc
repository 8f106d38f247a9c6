// SPDX-License-Identifier: MIT

#include "reference/train/parallel/sharded_gradients.h"

#include <algorithm>

#include "reference/train/kernels/kernels.h"

namespace train {

ShardedGradients::ShardedGradients(const Setup& setup, std::vector<Flat> flats, const Comm& shard_group, bool own_slots,
                                   const Stream& communication)
    : setup_(setup),
      shard_group_(shard_group),
      own_slots_(own_slots),
      communication_(communication),
      groups_(flats.size()),
      used_by_(setup.modules.size()) {
  const UseMap uses = uses_of(setup);
  for (size_t i = 0; i < flats.size(); ++i) {
    Group& group = groups_[i];
    group.flat = std::move(flats[i]);
    group.shard = setup.memory.allocate(Purpose::gradients, wide(setup.dtype), group.flat.shard_size());
    group.home = static_cast<int>(setup.modules.size());
    for (const Parameter* p : group.flat.parameters) {
      group.home = std::min(group.home, uses.at(p).first);
      group.last = std::max(group.last, uses.at(p).last);
    }
  }
  std::vector<const Flat*> sharing;
  const std::vector<bool> alone = open_beside_others();
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (own_slots || alone[i])
      groups_[i].own_slot = new_slot({&groups_[i].flat});
    else
      sharing.push_back(&groups_[i].flat);
  }
  const size_t shared = std::min<size_t>(sharing.size(), setup.overlap ? 2 : 1);
  for (size_t i = 0; i < shared; ++i) shared_slots_.push_back(new_slot(sharing));

  for (size_t m = 0; m < setup.modules.size(); ++m)
    for (size_t i = 0; i < groups_.size(); ++i)
      for (const Parameter* p : groups_[i].flat.parameters) {
        const auto& mine = setup.modules[m]->parameters();
        if (std::find(mine.begin(), mine.end(), p) == mine.end()) continue;
        used_by_[m].push_back(static_cast<int>(i));
        break;
      }
}

// Which groups must be set apart so that of the others no two are ever open together: while two are, the one that is
// open longer.
std::vector<bool> ShardedGradients::open_beside_others() const {
  std::vector<bool> apart(groups_.size());
  const auto meets_another = [&](size_t i) {
    for (size_t j = 0; j < groups_.size(); ++j)
      if (j != i && !apart[j] && groups_[j].home <= groups_[i].last && groups_[i].home <= groups_[j].last) return true;
    return false;
  };
  while (true) {
    int longest = -1, chosen = -1;
    for (size_t i = 0; i < groups_.size(); ++i)
      if (!apart[i] && groups_[i].last - groups_[i].home > longest && meets_another(i)) {
        longest = groups_[i].last - groups_[i].home;
        chosen = static_cast<int>(i);
      }
    if (chosen < 0) return apart;
    apart[static_cast<size_t>(chosen)] = true;
  }
}

int ShardedGradients::new_slot(const std::vector<const Flat*>& users) {
  int64_t whole = 0, shard = 0;
  for (const Flat* flat : users) {
    whole = std::max(whole, flat->padded);
    shard = std::max(shard, flat->shard_size());
  }
  auto slot = std::make_unique<Slot>();
  slot->whole = setup_.memory.allocate(Purpose::gradients, wide(setup_.dtype), whole);
  if (setup_.micro_batches > 1) slot->received = setup_.memory.allocate(Purpose::gradients, wide(setup_.dtype), shard);
  slots_.push_back(std::move(slot));
  return static_cast<int>(slots_.size()) - 1;
}

void ShardedGradients::open(Group& group) {
  group.slot = group.own_slot >= 0 ? group.own_slot : shared_slots_[turn_++ % shared_slots_.size()];
  const Slot& slot = *slots_[static_cast<size_t>(group.slot)];
  setup_.compute.wait(slot.free);
  group.flat.bind_gradients(slot.whole);
}

void ShardedGradients::begin_step() {
  for (Group& group : groups_) {
    group.done = 0;
    group.slot = -1;
    if (own_slots_) open(group);
  }
}

void ShardedGradients::before_backward(int module, int k) {
  for (const int i : used_by_[static_cast<size_t>(module)])
    if (Group& group = groups_[static_cast<size_t>(i)]; group.slot < 0) open(group);
}

// Groups are complete in reverse order. One that lies behind this module and was not touched is reduced as zero, in its
// place in the order, so that all ranks make the same calls.
void ShardedGradients::after_backward(int module, int k) {
  for (int i = static_cast<int>(groups_.size()) - 1; i >= 0; --i)
    if (const Group& group = groups_[static_cast<size_t>(i)]; group.home >= module && group.done <= k) reduce(i);
}

void ShardedGradients::reduce(int index) {
  Group& group = groups_[static_cast<size_t>(index)];
  if (group.slot < 0) open(group);
  const Slot& slot = *slots_[static_cast<size_t>(group.slot)];
  const View whole = slot.whole.part(0, group.flat.padded);
  group.flat.zero_unwritten(setup_.compute);
  if (group.flat.padded > group.flat.size)  // a larger group may have used the slot before
    fill(setup_.compute.get(), whole.part(group.flat.size, group.flat.padded - group.flat.size), 0);
  setup_.compute.record(group.written);
  communication_.wait(group.written);
  if (group.done == 0) {
    shard_group_.reduce_scatter(whole, group.shard, ncclSum, communication_);
  } else {
    const View received = slot.received.part(0, group.shard.size);
    shard_group_.reduce_scatter(whole, received, ncclSum, communication_);
    add_to(communication_.get(), group.shard, received, 1);
  }
  if (++group.done == setup_.micro_batches && then_) then_(index, group.shard);
  communication_.record(slot.free);
  group.slot = -1;
  if (own_slots_ && group.done < setup_.micro_batches) open(group);
}

void ShardedGradients::finish() {
  for (int i = static_cast<int>(groups_.size()) - 1; i >= 0; --i)
    while (groups_[static_cast<size_t>(i)].done < setup_.micro_batches) reduce(i);
  communication_.record(all_reduced_);
  setup_.compute.wait(all_reduced_);
}

}  // namespace train
