// SPDX-License-Identifier: MIT

#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "reference/train/run/options.h"

namespace train::test {

// Options as the program reads them from these words.
inline Options parse_line(const std::string& line) {
  std::vector<std::string> words = {"lockstep-train"};
  std::istringstream in(line);
  for (std::string word; in >> word;) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return parse_options(static_cast<int>(words.size()), argv.data());
}

}  // namespace train::test
