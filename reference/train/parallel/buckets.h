// SPDX-License-Identifier: MIT
//
// Whole parameters and gradients in buckets: what plain data parallelism and ZeRO-1 have in common (Li et al. 2020,
// 2006.15704, section 3.2). A bucket is a run of parameters, in the reverse of their order, which is about the order in
// which a backward pass finishes them. When it is reduced, and how micro-batches are added: whole_gradients.h.

#pragma once

#include <vector>

#include "reference/train/parallel/whole_gradients.h"

namespace train {

// When a bucket is full: when its gradients have reached the cap, the first one already at 1 MiB, so that communication
// starts early.
class BucketCap {
 public:
  explicit BucketCap(double cap) : cap_(cap) {}
  bool opens() const { return !open_; }  // does what comes next begin a bucket?
  void add(double bytes);

 private:
  double cap_, bytes_ = 0;
  int buckets_ = 0;
  bool open_ = false;
};

class Buckets {
 public:
  // `cap` bytes of gradients close a bucket; `ranks` is what buckets are padded to a multiple of.
  Buckets(const Setup& setup, double cap, int ranks);

  WholeGradients& gradients() { return gradients_; }
  int size() const { return static_cast<int>(flats_.size()); }
  const Flat& flat(int bucket) const { return flats_[static_cast<size_t>(bucket)]; }
  View value(int bucket) const { return values_[static_cast<size_t>(bucket)]; }
  View gradient(int bucket) const { return gradients_.gradient(bucket); }
  const Stream& communication() const { return communication_; }

 private:
  Stream own_;
  const Stream& communication_;
  std::vector<Flat> flats_;
  std::vector<View> values_;
  WholeGradients gradients_;
};

}  // namespace train
