// SPDX-License-Identifier: MIT
//
// What ends a program that was asked for something it cannot do: one sentence on standard error and status 2.

#pragma once

#include <sstream>
#include <stdexcept>

namespace train {

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Words>
[[noreturn]] void refuse(const Words&... words) {
  std::ostringstream out;
  (out << ... << words);
  throw Refusal(out.str());
}

}  // namespace train
