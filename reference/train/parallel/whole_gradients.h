// SPDX-License-Identifier: MIT
//
// Whole gradients, reduced once a step: what plain data parallelism, ZeRO-1 and FSDP without synchronisation have in
// common. Parameters form groups (buckets there, units here). A group is reduced when the last of its gradients is
// there, and only in the last micro-batch of a step.
//
// A micro-batch's gradients are added to the main gradient after the last use of their parameter. The first
// micro-batch writes the main gradient itself; later ones write a scratch that all modules share, since a module's
// gradients are added before the next module's are written. Parameters used by several modules have scratch of their
// own.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "reference/train/parallel/flat.h"

namespace train {

class WholeGradients {
 public:
  // `groups`, of trainable parameters, in the order in which a backward pass finishes them.
  WholeGradients(const Setup& setup, std::vector<Flat> groups, const Stream& communication);

  // Enqueues the reduction of a group's gradient, padding included, on the communication stream, which has waited for
  // it.
  using Reduce = std::function<void(int group, View gradient)>;
  void on_reduce(Reduce reduce) { reduce_ = std::move(reduce); }

  void begin_step();
  void after_backward(int module, int k);
  void finish();  // what was not used is zero; everything is reduced before later work of the compute stream

  View gradient(int group) const { return groups_[static_cast<size_t>(group)].gradient; }

 private:
  void settle(Parameter& parameter, int k);
  void launch_ready(bool everything);
  void make_scratch();

  struct Group {
    Flat flat;
    View gradient;    // padded to the ranks
    int missing = 0;  // parameters whose gradients are not there yet
  };
  struct Place {
    int group;
    int home;  // the module whose backward pass is the last to add to the gradient
    View main, scratch;
    int settled = 0;  // micro-batches
  };
  const Setup& setup_;
  const Stream& communication_;
  std::vector<Group> groups_;
  std::vector<Event> ready_;
  std::map<Parameter*, Place> places_;
  std::vector<std::vector<Parameter*>> homes_;  // by module
  Event all_reduced_;
  Reduce reduce_;
  size_t launched_ = 0;
};

}  // namespace train
