// SPDX-License-Identifier: MIT
//
// The half of FSDP that deals with values: a rank keeps a shard of every unit, and a whole unit lies in a slot from
// just before it is used until just after. A unit is gathered on the communication stream; the compute stream waits for
// it, and a slot is filled again only after the compute stream has left it. So the number of slots is the limit on
// gathers that run ahead (2304.11277, section 3.4.2): one, or two with prefetch.

#pragma once

#include <memory>
#include <vector>

#include "reference/train/parallel/flat.h"
#include "reference/train/parallel/fsdp.h"
#include "reference/train/parallel/units.h"

namespace train {

class GatheredUnits {
 public:
  GatheredUnits(const Setup& setup, const FsdpSettings& settings, const Units& units, const Comm& group,
                const Stream& communication);

  void begin_step();  // shards have new values
  void before_forward(int module);
  void after_forward(int module);
  void before_backward(int module);
  void after_backward(int module);
  void finish_step();
  void gather_all();
  void release_all();

  const Flat& flat(int unit) const { return states_[static_cast<size_t>(unit)].flat; }
  View shard(int unit) const { return states_[static_cast<size_t>(unit)].shard; }

 private:
  struct Slot {
    View whole;
    Event left;  // by the compute stream
    bool taken = false;
  };
  struct State {
    Flat flat;
    View shard;
    bool keep = false;             // from forward to backward pass
    int first = 0, last = 0;       // modules that use it
    int own_slot = -1, slot = -1;  // -1: not gathered
    bool awaited = false;          // the compute stream has waited for the gather
    Event gathered;
  };
  int new_slot(int64_t size);
  int free_slot(const State& state) const;
  bool gather(int unit);
  void need(int module);
  void prefetch(int module, int direction);
  void release(int unit);
  bool needed_by(int unit, int module) const;

  const Setup& setup_;
  const FsdpSettings settings_;
  const Comm& group_;
  const Stream& communication_;
  std::vector<std::vector<int>> of_module_;
  std::vector<State> states_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<int> shared_slots_;
  std::vector<View> everything_;  // of gather_all, made when it is first called
  Event updated_;
};

}  // namespace train
