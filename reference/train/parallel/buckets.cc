// SPDX-License-Identifier: MIT

#include "reference/train/parallel/buckets.h"

#include <algorithm>

#include "reference/train/kernels/kernels.h"

namespace train {
namespace {

// Parameters in reverse; inside a bucket they stand in forward order.
std::vector<std::vector<Parameter*>> cut_into_buckets(const std::vector<Parameter*>& parameters, Dtype dtype,
                                                      double cap) {
  std::vector<std::vector<Parameter*>> buckets;
  BucketCap limit(cap);
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    if ((*p)->frozen) continue;
    if (limit.opens()) buckets.emplace_back();
    buckets.back().insert(buckets.back().begin(), *p);
    limit.add(static_cast<double>((*p)->count) * static_cast<double>(size_of(wide(dtype))));
  }
  return buckets;
}

}  // namespace

void BucketCap::add(double bytes) {
  constexpr double kFirstBucket = 1 << 20;
  if (!open_) {
    ++buckets_;
    bytes_ = 0;
  }
  bytes_ += bytes;
  open_ = bytes_ < (buckets_ == 1 ? std::min(cap_, kFirstBucket) : cap_);
}

Buckets::Buckets(const Setup& setup, double cap, int ranks) : setup_(setup), homes_(setup.modules.size()) {
  const UseMap uses = uses_of(setup);
  for (const std::vector<Parameter*>& parameters : cut_into_buckets(setup.parameters, setup.dtype, cap)) {
    Bucket bucket{Flat(parameters, ranks), {}, {}, 0};
    bucket.value = setup.memory.allocate(Purpose::parameters, setup.dtype, bucket.flat.padded);
    bucket.gradient = setup.memory.allocate(Purpose::gradients, wide(setup.dtype), bucket.flat.padded);
    bucket.flat.bind_values(bucket.value);
    bucket.flat.bind_gradients(bucket.gradient);
    for (Parameter* p : bucket.flat.parameters) {
      setup.initial(*p, p->value);
      const int home = uses.at(p).first;
      places_[p] = {static_cast<int>(buckets_.size()), home, p->grad, {}};
      homes_[static_cast<size_t>(home)].push_back(p);
    }
    buckets_.push_back(std::move(bucket));
  }
  ready_ = std::vector<Event>(buckets_.size());
  if (setup.micro_batches > 1) make_scratch();
}

void Buckets::make_scratch() {
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

void Buckets::begin_step() {
  launched_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = static_cast<int>(bucket.flat.parameters.size());
  for (auto& [parameter, place] : places_) {
    parameter->grad = place.main;
    parameter->grad_written = false;
    place.settled = 0;
  }
}

// The micro-batch's gradient of a parameter is complete.
void Buckets::settle(Parameter& parameter, int k) {
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
  if (k == setup_.micro_batches - 1) --buckets_[static_cast<size_t>(place.bucket)].missing;
}

void Buckets::after_backward(int module, int k) {
  for (Parameter* p : homes_[static_cast<size_t>(module)]) settle(*p, k);
  if (setup_.overlap && k == setup_.micro_batches - 1) launch_ready(false);
}

// In the order of the buckets whatever the order of gradients, so that all ranks make the same calls.
void Buckets::launch_ready(bool everything) {
  for (; launched_ < buckets_.size(); ++launched_) {
    const Bucket& bucket = buckets_[launched_];
    if (bucket.missing > 0 && !everything) return;
    setup_.compute.record(ready_[launched_]);
    communication_.wait(ready_[launched_]);
    reduce_(static_cast<int>(launched_), communication_);
  }
}

void Buckets::finish() {
  for (const std::vector<Parameter*>& homes : homes_)
    for (Parameter* p : homes)
      if (places_.at(p).settled == 0 || p->grad_written) settle(*p, setup_.micro_batches - 1);
  launch_ready(true);
  communication_.record(all_reduced_);
  setup_.compute.wait(all_reduced_);
}

}  // namespace train
