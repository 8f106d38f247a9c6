// SPDX-License-Identifier: MIT
//
// From summed gradients to new parameters:
//
//   g    = sum / (tokens * loss scale)          once, after all reductions
//   norm = |g| over the whole model             independent of how it is spread over ranks
//   p    = AdamW or SGD of g * min(1, clip / norm)
//
// The squares are summed as double-doubles, whose rounding does not show in the rounded result; the ranks' pairs are
// gathered and added in the order of ranks on every rank, and rounded once.

#pragma once

#include <vector>

#include "reference/train/core/comm.h"
#include "reference/train/core/device.h"
#include "reference/train/core/strategy.h"
#include "reference/train/run/options.h"

namespace train {

// The learning rate of a step, which counts from 1: linear warm-up, then a cosine (Loshchilov & Hutter 2016,
// 1608.03983) down to min_lr.
double rate_at(const Options& options, int64_t step);

class Optimizer {
 public:
  // `model`: the ranks whose parameters together are the model. What several of them have counts once in the norm
  // (Parameter::elsewhere).
  Optimizer(const Options& options, Memory& memory, const Stream& compute, const Comm& model);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Divides, and returns the norm. Waits for the compute stream.
  double finish_gradients(Strategy& strategy, double divisor);
  // Nothing happens where the norm is not a number, as if there had been no such step: AdamW's corrections of its
  // moments go by the number of updates.
  void update(Strategy& strategy, double norm, double rate);

  int64_t updates() const { return updates_; }
  void restore(int64_t updates) { updates_ = updates; }

 private:
  const Options& options_;
  Memory& memory_;
  const Stream& compute_;
  const Comm& model_;
  View mine_, owners_, all_;
  double* host_ = nullptr;
  int64_t updates_ = 0;
};

}  // namespace train
