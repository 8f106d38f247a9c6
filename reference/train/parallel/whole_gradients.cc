// SPDX-License-Identifier: MIT

#include "reference/train/parallel/whole_gradients.h"

#include <algorithm>

#include "reference/train/kernels/kernels.h"

namespace train {

WholeGradients::WholeGradients(const Setup& setup, std::vector<Flat> flats, const Stream& communication)
    : setup_(setup), communication_(communication), ready_(flats.size()), homes_(setup.modules.size()) {
  const UseMap uses = uses_of(setup);
  for (Flat& flat : flats) {
    const View gradient = setup.memory.allocate(Purpose::gradients, wide(setup.dtype), flat.padded);
    flat.bind_gradients(gradient);
    for (Parameter* p : flat.parameters) {
      const int home = uses.at(p).first;
      places_[p] = {static_cast<int>(groups_.size()), home, p->grad, {}};
      homes_[static_cast<size_t>(home)].push_back(p);
    }
    groups_.push_back({std::move(flat), gradient, 0});
  }
  if (setup.micro_batches > 1) make_scratch();
}

void WholeGradients::make_scratch() {
  const Dtype type = wide(setup_.dtype);
  const UseMap uses = uses_of(setup_);
  int64_t largest = 0;
  for (const std::vector<Parameter*>& homes : homes_) {
    int64_t count = 0;
    for (const Parameter* p : homes)
      if (uses.at(p).first == uses.at(p).last) count += p->count;
    largest = std::max(largest, count);
  }
  const View shared = setup_.memory.allocate(Purpose::gradients, type, largest);
  for (const std::vector<Parameter*>& homes : homes_) {
    int64_t at = 0;
    for (Parameter* p : homes) {
      if (uses.at(p).first == uses.at(p).last) {
        places_.at(p).scratch = shared.part(at, p->count);
        at += p->count;
      } else {
        places_.at(p).scratch = setup_.memory.allocate(Purpose::gradients, type, p->count);
      }
    }
  }
}

void WholeGradients::begin_step() {
  launched_ = 0;
  for (Group& group : groups_) group.missing = static_cast<int>(group.flat.parameters.size());
  for (auto& [parameter, place] : places_) {
    parameter->grad = place.main;
    parameter->grad_written = false;
    place.settled = 0;
  }
}

// The micro-batch's gradient of a parameter is complete.
void WholeGradients::settle(Parameter& parameter, int k) {
  Place& place = places_.at(&parameter);
  const cudaStream_t stream = setup_.compute.get();
  if (place.settled == 0) {
    if (!parameter.grad_written) fill(stream, place.main, 0);
  } else if (parameter.grad_written) {
    add_to(stream, place.main, place.scratch, 1);
  }
  ++place.settled;
  parameter.grad = place.scratch;
  parameter.grad_written = false;
  if (k == setup_.micro_batches - 1) --groups_[static_cast<size_t>(place.group)].missing;
}

void WholeGradients::after_backward(int module, int k) {
  for (Parameter* p : homes_[static_cast<size_t>(module)]) settle(*p, k);
  if (setup_.overlap && k == setup_.micro_batches - 1) launch_ready(false);
}

// In the order of the groups whatever the order of gradients, so that all ranks make the same calls.
void WholeGradients::launch_ready(bool everything) {
  for (; launched_ < groups_.size(); ++launched_) {
    const Group& group = groups_[launched_];
    if (group.missing > 0 && !everything) return;
    setup_.compute.record(ready_[launched_]);
    communication_.wait(ready_[launched_]);
    reduce_(static_cast<int>(launched_), group.gradient);
  }
}

void WholeGradients::finish() {
  for (const std::vector<Parameter*>& homes : homes_)
    for (Parameter* p : homes)
      if (places_.at(p).settled == 0 || p->grad_written) settle(*p, setup_.micro_batches - 1);
  launch_ready(true);
  communication_.record(all_reduced_);
  setup_.compute.wait(all_reduced_);
}

}  // namespace train
