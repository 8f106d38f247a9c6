// SPDX-License-Identifier: MIT
//
// What every data-parallel strategy is made from.

#pragma once

#include <functional>
#include <map>
#include <vector>

#include "reference/train/core/comm.h"
#include "reference/train/core/device.h"
#include "reference/train/core/module.h"
#include "reference/train/core/parameter.h"

namespace train {

struct Setup {
  std::vector<const Module*> modules;  // in forward order; `module` in the strategy's calls is a place in this list
  std::vector<Parameter*> parameters;  // in forward order: all of the modules, or the dense ones, or the experts
  const Comm& group;                   // over which gradients are summed
  const Stream& compute;               // modules run on it
  Memory& memory;
  Dtype dtype = Dtype::f32;                             // of parameters
  int micro_batches = 1;                                // in a step
  bool second_moment = true;                            // the optimizer keeps one
  bool overlap = true;                                  // communication runs beside the passes
  std::function<void(const Parameter&, View)> initial;  // enqueues the first values of a parameter on `compute`

  // The stream for communication: one of its own, or the compute stream, on which nothing is beside anything.
  const Stream& communication(const Stream& own) const { return overlap ? own : compute; }
};

// The first and the last of the modules that use a parameter.
struct Uses {
  int first = -1, last = -1;
};
using UseMap = std::map<const Parameter*, Uses>;
UseMap uses_of(const Setup& setup);

}  // namespace train
