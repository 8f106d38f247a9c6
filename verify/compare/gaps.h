// SPDX-License-Identifier: MIT
//
// What could not be compared, in which steps, and why: many tensors of many steps make one sentence.

#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace lockstep::verify {

class Gaps {
 public:
  // `category`: of what was not compared; empty where nothing was missed but evidence is.
  void add(const std::string& why, const std::string& category, int64_t step) { gaps_[why][category].insert(step); }
  // "steps 3-7: B lacks files of rank 2: grad and param were not compared", by first step.
  std::vector<std::string> sentences() const;

 private:
  std::map<std::string, std::map<std::string, std::set<int64_t>>> gaps_;  // why -> category -> steps
};

std::string steps_text(const std::set<int64_t>& steps);  // "step 3", "steps 3-7,9"

}  // namespace lockstep::verify
