// SPDX-License-Identifier: MIT
//
// FSDP's units: sets of parameters that are gathered and reduced together (Zhao et al. 2023, 2304.11277,
// section 3.2.1). Small ones save memory, large ones save calls. A wrap policy makes them of modules:
//
//   block    a unit for each transformer layer
//   layer    a unit for each module (attention, MLP)
//   size:N   layers' modules one after another until they have N parameters; what remains at the end is left over
//   none     no units
//
// All that is left over is the root unit: embeddings and head, which often share a parameter. Parameters that are not
// trained make a unit of their own beside the one they would be in, since they are gathered but never reduced.

#pragma once

#include <string>
#include <vector>

#include "reference/train/parallel/setup.h"

namespace train {

struct Unit {
  std::string name;
  std::vector<Parameter*> parameters;  // in the order of the model
  bool root = false, frozen = false;
};

struct Units {
  std::vector<Unit> units;                  // by first use
  std::vector<std::vector<int>> of_module;  // which it needs
};

Units make_units(const Setup& setup, const std::string& wrap);

}  // namespace train
