// SPDX-License-Identifier: MIT
//
// What a difference looks like, in the words of the mistakes that make such differences: a factor that is a number of
// ranks, one rank's part alone, a transposed tensor, another rank's shard. A hint says what is seen and what usually
// does it; it never decides anything.

#pragma once

#include <optional>
#include <string>

#include "verify/assemble/tensor.h"
#include "verify/compare/values.h"

namespace lockstep::verify {

struct Worlds {
  int a = 1, b = 1;  // ranks
};

std::string tensor_hint(const GlobalTensor& a, const GlobalTensor& b, const std::vector<dump::Shard>& shards_b,
                        const Values& values, const Place& place, const Worlds& worlds);

// For a parameter that differs: where the gradient of all elements that do is zero but for rounding. Empty: it is not.
std::string zero_gradient_hint(const GlobalTensor& gradient, const Place& place);

std::string metric_hint(const std::string& name, double a, double b, const Worlds& worlds);

// For the first difference of all, where to look: what it means that everything before it in the step is the same, or,
// where one dump is wrong by itself, at its writer. `kind` and `side` are a Difference's.
std::string look_at(const std::string& kind, char side, const std::string& category, int64_t step);

}  // namespace lockstep::verify
