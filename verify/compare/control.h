// SPDX-License-Identifier: MIT
//
// A comparison that says "same" must be one that could have said "different". So each run of it perturbs one element of
// a tensor that it compared, in a view of A's own data, and runs the same code on A against that: a flipped bit must
// cost "bitwise", a change of twice the tolerance must be "different", at this element, on this rank.

#pragma once

#include <string>

#include "verify/assemble/tensor.h"
#include "verify/compare/tolerance.h"

namespace lockstep::verify {

struct Control {
  std::string tensor, dtype;
  std::vector<int64_t> index;
  std::string fault;  // what the comparison failed to see; empty: it saw everything
};

Control control_of(const GlobalTensor& tensor, const Tolerance& tolerance);  // of a tensor with an element at least

}  // namespace lockstep::verify
