// SPDX-License-Identifier: MIT
//
// What benchmarks print: a line a figure, `name  value  target  ok|MISS`, and an exit status that says whether all were
// met.

#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace lockstep::bench {

inline double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

class Figures {
 public:
  // A figure that must not exceed its target.
  void at_most(const std::string& name, double value, double target, const char* unit) {
    const bool ok = value <= target;
    missed_ |= !ok;
    std::printf("%-44s %10.2f %-4s <= %8.2f  %s\n", name.c_str(), value, unit, target, ok ? "ok" : "MISS");
  }
  // One that must reach its target.
  void at_least(const std::string& name, double value, double target, const char* unit) {
    const bool ok = value >= target;
    missed_ |= !ok;
    std::printf("%-44s %10.2f %-4s >= %8.2f  %s\n", name.c_str(), value, unit, target, ok ? "ok" : "MISS");
  }
  // One that is told for its own sake.
  void tell(const std::string& name, double value, const char* unit) {
    std::printf("%-44s %10.2f %-4s    %8s  ok\n", name.c_str(), value, unit, "-");
  }
  int exit_status() const { return missed_ ? 1 : 0; }

 private:
  bool missed_ = false;
};

}  // namespace lockstep::bench
