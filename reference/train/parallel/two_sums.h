// SPDX-License-Identifier: MIT
//
// Gradients that are summed over different ranks: an expert's over those that hold it (edp), all others over dp x cp.
// Each kind has a strategy of its own, which knows only its parameters; this one asks both.

#pragma once

#include <memory>

#include "reference/train/core/strategy.h"

namespace train {

// `world`: all ranks of the training, which are the owners of everything together. Of pieces that several ranks hold,
// `dense_first` and `expert_first` say whether this rank is the first of them, for a kind that is not sharded.
std::unique_ptr<Strategy> make_two_sums(std::unique_ptr<Strategy> dense, std::unique_ptr<Strategy> experts,
                                        const Comm& world, bool dense_first, bool expert_first);

}  // namespace train
