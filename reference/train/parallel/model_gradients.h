// SPDX-License-Identifier: MIT
//
// Sums of gradients inside the model, once a step, after those over the data-parallel ranks: of parameters that are
// whole on several ranks which each see a part of what they are used for. Under sequence parallelism these are layer
// norms, biases after the row-parallel layers, and learned positions (2205.05198, section 4.2.2); and where key/value
// heads are fewer than tensor-parallel ranks, the rows of c_attn that several ranks hold.
//
// All ranks concerned hold the same pieces of a parameter, whatever strategy spreads it over data-parallel ranks, since
// they are at the same place of that group.

#pragma once

#include <vector>

#include "reference/train/core/module.h"
#include "reference/train/core/strategy.h"

namespace train {

void finish_model_gradients(const std::vector<Owned>& owned, const Groups& groups, const Stream& stream);

}  // namespace train
