// SPDX-License-Identifier: MIT

#include "reference/train/parallel/gathered_units.h"

#include <algorithm>

namespace train {

GatheredUnits::GatheredUnits(const Setup& setup, const FsdpSettings& settings, const Units& units, const Comm& group,
                             const Stream& communication)
    : setup_(setup),
      settings_(settings),
      group_(group),
      communication_(communication),
      of_module_(units.of_module),
      states_(units.units.size()) {
  int64_t largest = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    state.flat = Flat(units.units[i].parameters, group.size());
    state.shard = setup.memory.allocate(Purpose::parameters, setup.dtype, state.flat.shard_size());
    const auto uses = [&](const std::vector<int>& needs) {
      return std::find(needs.begin(), needs.end(), static_cast<int>(i)) != needs.end();
    };
    state.first = static_cast<int>(std::find_if(of_module_.begin(), of_module_.end(), uses) - of_module_.begin());
    state.last = static_cast<int>(of_module_.rend() - std::find_if(of_module_.rbegin(), of_module_.rend(), uses)) - 1;
    state.keep = settings.keep_all || settings.keep_for_step || (units.units[i].root && settings.keep_root);
    if (state.keep || units.units[i].root)
      state.own_slot = new_slot(state.flat.padded);
    else
      largest = std::max(largest, state.flat.padded);
  }
  // How many of the other units one module needs, and as many again to gather ahead.
  size_t together = 0;
  for (const std::vector<int>& needs : of_module_) {
    const auto shares = [&](int unit) { return states_[static_cast<size_t>(unit)].own_slot < 0; };
    together = std::max(together, static_cast<size_t>(std::count_if(needs.begin(), needs.end(), shares)));
  }
  const bool ahead = settings.prefetch_forward || settings.prefetch_backward;
  for (size_t i = 0; i < together * (ahead ? 2 : 1); ++i) shared_slots_.push_back(new_slot(largest));

  // First values are made whole, unit by unit, and all but the shard is forgotten.
  for (State& state : states_) {
    const View whole = slots_[static_cast<size_t>(state.own_slot < 0 ? shared_slots_[0] : state.own_slot)]->whole;
    state.flat.bind_values(whole);
    for (const Parameter* p : state.flat.parameters) setup.initial(*p, p->value);
    check(cudaMemcpyAsync(state.shard.data, state.flat.shard(whole, group.rank()).data, state.shard.bytes(),
                          cudaMemcpyDeviceToDevice, setup.compute.get()),
          "cudaMemcpyAsync");
  }
}

int GatheredUnits::new_slot(int64_t size) {
  auto slot = std::make_unique<Slot>();
  slot->whole = setup_.memory.allocate(Purpose::gathered, setup_.dtype, size);
  slots_.push_back(std::move(slot));
  return static_cast<int>(slots_.size()) - 1;
}

int GatheredUnits::free_slot(const State& state) const {
  if (state.own_slot >= 0) return state.own_slot;
  for (const int slot : shared_slots_)
    if (!slots_[static_cast<size_t>(slot)]->taken) return slot;
  return -1;
}

// False when no slot is free.
bool GatheredUnits::gather(int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  if (state.slot >= 0) return true;
  const int index = free_slot(state);
  if (index < 0) return false;
  Slot& slot = *slots_[static_cast<size_t>(index)];
  slot.taken = true;
  state.slot = index;
  state.awaited = false;
  communication_.wait(slot.left);
  const View whole = slot.whole.part(0, state.flat.padded);
  group_.all_gather(state.shard, whole, communication_);
  communication_.record(state.gathered);
  state.flat.bind_values(whole);
  return true;
}

void GatheredUnits::release(int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  if (state.slot < 0) return;
  Slot& slot = *slots_[static_cast<size_t>(state.slot)];
  setup_.compute.record(slot.left);
  slot.taken = false;
  state.slot = -1;
}

bool GatheredUnits::needed_by(int unit, int module) const {
  if (module < 0 || module >= static_cast<int>(of_module_.size())) return false;
  const std::vector<int>& needs = of_module_[static_cast<size_t>(module)];
  return std::find(needs.begin(), needs.end(), unit) != needs.end();
}

void GatheredUnits::need(int module) {
  for (const int unit : of_module_[static_cast<size_t>(module)]) {
    State& state = states_[static_cast<size_t>(unit)];
    gather(unit);
    if (!state.awaited) setup_.compute.wait(state.gathered);
    state.awaited = true;
  }
}

// The units of the nearest module, in this direction, that needs one which is not there. `need` has taken what this
// module needs, so what is gathered ahead can only take slots that are free.
void GatheredUnits::prefetch(int module, int direction) {
  for (int next = module + direction; next >= 0 && next < static_cast<int>(of_module_.size()); next += direction) {
    bool missing = false;
    for (const int unit : of_module_[static_cast<size_t>(next)])
      if (states_[static_cast<size_t>(unit)].slot < 0) {
        missing = true;
        gather(unit);
      }
    if (missing) return;
  }
}

void GatheredUnits::begin_step() {
  setup_.compute.record(updated_);
  communication_.wait(updated_);
}

void GatheredUnits::before_forward(int module) {
  need(module);
  if (settings_.prefetch_forward) prefetch(module, +1);
}

// A unit is left when the next module does not need it; the root, which is used at both ends, after its last use.
void GatheredUnits::after_forward(int module) {
  for (const int unit : of_module_[static_cast<size_t>(module)]) {
    const State& state = states_[static_cast<size_t>(unit)];
    if (state.keep) continue;
    if (state.own_slot >= 0 ? module == state.last : !needed_by(unit, module + 1)) release(unit);
  }
}

void GatheredUnits::before_backward(int module) {
  need(module);
  if (settings_.prefetch_backward) prefetch(module, -1);
}

void GatheredUnits::after_backward(int module) {
  if (settings_.keep_for_step) return;
  for (const int unit : of_module_[static_cast<size_t>(module)]) {
    const State& state = states_[static_cast<size_t>(unit)];
    if (state.own_slot >= 0 ? module == state.first : !needed_by(unit, module - 1)) release(unit);
  }
}

void GatheredUnits::finish_step() {
  for (size_t i = 0; i < states_.size(); ++i) release(static_cast<int>(i));
}

void GatheredUnits::gather_all() {
  const bool first = everything_.empty();
  begin_step();
  for (size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    if (first)
      everything_.push_back(state.own_slot >= 0
                                ? slots_[static_cast<size_t>(state.own_slot)]->whole
                                : setup_.memory.allocate(Purpose::workspace, setup_.dtype, state.flat.padded));
    group_.all_gather(state.shard, everything_[i], communication_);
    state.flat.bind_values(everything_[i]);
  }
  communication_.record(updated_);
  setup_.compute.wait(updated_);
}

void GatheredUnits::release_all() {
  setup_.compute.record(updated_);
  communication_.wait(updated_);
}

}  // namespace train
