// SPDX-License-Identifier: MIT
//
// A whole training in a test: the command line is parsed as the program does, ranks are threads, and what the ranks
// dumped is compared as `lockstep compare` does it.

#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/train/run/state.h"

namespace train::test {

struct Trained {
  std::shared_ptr<const std::filesystem::path> dump;  // the folder, gone with the last copy of this
  std::vector<double> loss, norm, scale;              // by step, from 1; as rank 0 tells them
  std::vector<long long> tokens;
  std::map<std::string, double> memory;  // most bytes at once by purpose, of rank 0
};

// With --dump. Failed expectations inside are seen.
Trained train(const std::string& command_line);
// Without: only losses and norms.
Trained train_quietly(const std::string& command_line);

// Goes on from a state, with --dump, to the command line's last step.
Trained train_from(const TrainingState& state, const std::string& command_line);

// Every tensor of every step and every metric, with one tolerance (relative Frobenius norm), or a wider one for
// parameters before the last step.
struct Verdict {
  std::string difference;         // the first one, as a sentence; empty: none
  double worst = 0;               // relative error of what is the same
  std::string first_not_bitwise;  // a tensor or metric that is the same but not bit for bit
};
Verdict compare(const Trained& a, const Trained& b, double tolerance, double early_parameters = 0);
// Where two trainings are not equal bit for bit; empty: nowhere.
std::string first_unequal(const Trained& a, const Trained& b);

}  // namespace train::test
