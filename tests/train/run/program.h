// SPDX-License-Identifier: MIT
//
// The program as a user starts it, in a test.

#pragma once

#include <gtest/gtest.h>

#include <sstream>

#include "tests/demo/process.h"

namespace train::test {

using lockstep::test::Outcome;
using lockstep::test::run_program;
using lockstep::test::TemporaryFolder;
using Words = std::vector<std::string>;
constexpr std::chrono::seconds kPatience(100);

inline const Words kSmall = {"--layers", "1",  "--heads", "2", "--width", "16",
                             "--seq",    "16", "--steps", "3", "--dtype", "fp64"};

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline Outcome train(const Words& options) { return run_program(Words{LOCKSTEP_TRAIN} + kSmall + options, kPatience); }

// The losses and norms of all steps, without what depends on time.
inline std::string told(const std::string& out) {
  std::istringstream in(out);
  std::string all;
  for (std::string line; std::getline(in, line);)
    if (line.rfind("step", 0) == 0) all += line.substr(0, line.find("  lr")) + '\n';
  return all;
}

// With status 2 and this sentence alone.
inline void expect_refusal(const Words& options, const std::string& says) {
  const Outcome outcome = train(options);
  EXPECT_EQ(outcome.status, 2) << says;
  EXPECT_EQ(outcome.err, "lockstep-train: " + says + "\n");
}

}  // namespace train::test
