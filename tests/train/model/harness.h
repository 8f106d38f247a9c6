// SPDX-License-Identifier: MIT
//
// One model on one rank, with batches that show mistakes: masked targets, packed documents of unequal length, more than
// one micro-batch, and parameters none of which is small, zero or one.

#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "reference/train/model/model.h"
#include "tests/train/model/whole.h"

namespace train::test {

using Values = std::vector<double>;

struct Experiment {
  std::string name;
  Config config;
  int micro_batches = 1;
  int64_t sequences = 2;  // in a micro-batch
  bool packed = false, masked = false;
  double loss_scale = 1;
};
inline std::ostream& operator<<(std::ostream& out, const Experiment& setup) { return out << setup.name; }

// A small model: two layers, four heads, width 16, 12 positions, 11 classes. `change` edits it.
Experiment small(
    const std::string& name, void (*change)(Experiment&) = [](Experiment&) {});

struct HostBatch {
  int64_t sequences = 0, length = 0;
  std::vector<int32_t> tokens, targets, positions, documents, order;
  std::vector<int64_t> samples;
};

class Rig {
 public:
  // `held`: the modules of this rank; none: all.
  explicit Rig(const Experiment& setup, std::vector<int> held = {});

  const Experiment& setup() const { return setup_; }
  Model& model() { return *model_; }
  Whole& strategy() { return *strategy_; }
  const std::vector<HostBatch>& batches() const { return host_; }
  const Batch& batch(int k) const { return batches_[static_cast<size_t>(k)]; }
  const Memory& memory() const { return memory_; }
  cudaStream_t stream() const { return stream_.get(); }

  void begin_step();
  // All micro-batches forward and backward; the sum of losses. `split`: the backward pass in two halves.
  double step(bool split = false);
  double evaluate();  // the sum of losses of all micro-batches
  Values gradient(const Parameter& parameter);
  std::map<std::string, Values> gradients();

  Values get(View view);
  void put(View view, const Values& values);
  // Elements that are not vocabulary padding.
  static int64_t real_elements(const Parameter& parameter);

 private:
  HostBatch make_batch(std::mt19937_64& random, int64_t first_sample) const;
  Batch upload(const HostBatch& batch);
  template <class T>
  const T* upload(const std::vector<T>& values);

  Experiment setup_;
  Memory memory_{0};
  Stream stream_;
  Groups groups_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Whole> strategy_;
  std::vector<HostBatch> host_;
  std::vector<Batch> batches_;
  View evaluated_;
};

}  // namespace train::test
