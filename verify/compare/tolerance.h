// SPDX-License-Identifier: MIT
//
// How far two values may be apart before they count as different, and why. A tolerance without a reason is a wish.

#pragma once

#include <string>

#include "verify/dump/dtype.h"

namespace lockstep::verify {

struct Tolerance {
  double rtol = 0;
  std::string reason;
};

// For tensors of this type, by relative Frobenius norm.
Tolerance tolerance_of(dump::Dtype dtype);
// Of two types the coarser one decides.
dump::Dtype coarser(dump::Dtype a, dump::Dtype b);

}  // namespace lockstep::verify
