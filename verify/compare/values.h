// SPDX-License-Identifier: MIT
//
// Two global tensors: the same bits, the same within a tolerance, or different; and where. The measure is the relative
// Frobenius norm |A - B| / |A|, in double: it does not depend on scale, and it is what the theory of rounding bounds.
// Element by element everything near zero would be different; cosines do not see a factor; ULPs say how a difference
// came about but not whether it matters. So these three are told, and decide nothing.

#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "verify/assemble/tensor.h"
#include "verify/compare/tolerance.h"

namespace lockstep::verify {

enum class Outcome { bitwise, within, different };

struct Values {
  Outcome outcome = Outcome::bitwise;
  double relative = 0;              // |A - B| / |A|; infinite when |A| is 0, and where either side is not finite
  double norm_a = 0, norm_b = 0;    // of the finite elements
  double cosine = 1;                // 1 where a norm is 0
  std::optional<uint64_t> max_ulp;  // for floats of one type
  int64_t nan_a = 0, nan_b = 0;     // with one the outcome is different, even where all bits are the same
  int64_t inf_a = 0, inf_b = 0;
};

// Cheap where the bits are the same. Shapes are equal; that was seen before.
Values compare_values(const GlobalTensor& a, const GlobalTensor& b, const Tolerance& tolerance);

// Where two tensors that are different differ: the elements that are further apart than the noise that the tolerance
// leaves to each (its share of the norm), or not a number. If |A - B| > rtol |A| there is one at least.
struct Place {
  int64_t first = -1;
  int64_t count = 0;
  std::vector<dump::Range> box;    // smallest box with all of them, per dimension
  std::set<int> ranks_a, ranks_b;  // whose elements are among them
  std::set<int> other_ranks_b;     // ranks of B with elements of this tensor that are not
};
Place find_place(const GlobalTensor& a, const GlobalTensor& b, const Values& values, const Tolerance& tolerance);

}  // namespace lockstep::verify
