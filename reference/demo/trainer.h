// SPDX-License-Identifier: MIT
//
// One rank of a data-parallel training, as people write it: broadcast the parameters, then for every batch forward,
// backward with an all-reduce a gradient as soon as it is ready, optimizer.

#pragma once

#include "reference/demo/launcher.h"
#include "reference/demo/options.h"

namespace demo {

// Trains one epoch as rank `place.rank` and returns the rank's exit status.
int train(const Options& options, const RankPlace& place);

}  // namespace demo
