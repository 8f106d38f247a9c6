// SPDX-License-Identifier: MIT
//
// Whole gradients in buckets: what plain data parallelism and ZeRO-1 have in common (Li et al. 2020, 2006.15704,
// section 3.2). A bucket is a run of parameters, in the reverse of their order, which is about the order in which a
// backward pass finishes them; it is reduced when the last of its gradients is there, and only in the last micro-batch
// of a step.
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

// When a bucket is full: when its gradients have reached the cap, the first one already at 1 MiB.
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
  struct Bucket {
    Flat flat;
    View value, gradient;  // padded to the ranks
    int missing = 0;       // parameters whose gradients are not there yet
  };
  // `cap` bytes of gradients close a bucket; the first is at most 1 MiB, so that communication starts early. `ranks`
  // is what buckets are padded to a multiple of.
  Buckets(const Setup& setup, double cap, int ranks);

  // Enqueues the reduction of a bucket on the communication stream, which has waited for its gradients.
  using Reduce = std::function<void(int bucket, const Stream& communication)>;
  void on_reduce(Reduce reduce) { reduce_ = std::move(reduce); }

  void begin_step();
  void after_backward(int module, int k);
  void finish();  // what was not used is zero; everything is reduced before later work of the compute stream

  const std::vector<Bucket>& all() const { return buckets_; }
  const Stream& communication() const { return communication_; }

 private:
  void settle(Parameter& parameter, int k);
  void launch_ready(bool everything);
  void make_scratch();

  struct Place {
    int bucket;
    int home;  // the module whose backward pass is the last to add to the gradient
    View main, scratch;
    int settled = 0;  // micro-batches
  };
  const Setup& setup_;
  std::vector<Bucket> buckets_;
  std::vector<Event> ready_;
  std::map<Parameter*, Place> places_;
  std::vector<std::vector<Parameter*>> homes_;  // by module
  Stream communication_;
  Event all_reduced_;
  Reduce reduce_;
  size_t launched_ = 0;
};

}  // namespace train
