// SPDX-License-Identifier: MIT
//
// From the command line to the parts of a training.

#pragma once

#include <functional>
#include <memory>

#include "reference/train/core/strategy.h"
#include "reference/train/model/model.h"
#include "reference/train/run/communicators.h"
#include "reference/train/run/options.h"
#include "reference/train/run/text.h"

namespace train {

Config config_of(const Options& options);

// Every pattern must name a parameter, and one must be left to train. Throws Refusal.
void check_freeze(const Config& config);

// A number of batches that was asked for must be there among the held-out samples. Throws Refusal.
void check_evaluation(const Options& options, const Text& text);

struct StrategyParts {
  const Options& options;
  const Communicators& comms;
  const Model& model;
  const Stream& compute;
  Memory& memory;
  std::function<void(const Parameter&, View)> initial;  // enqueues first values on the compute stream
};
std::unique_ptr<Strategy> make_strategy(const StrategyParts& parts);

}  // namespace train
