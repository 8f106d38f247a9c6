// SPDX-License-Identifier: MIT
//
// A whole training in a test: the command line is parsed as the program does, ranks are threads, and what the ranks
// dumped is put together to whole tensors again.

#pragma once

#include <map>
#include <string>
#include <vector>

namespace train::test {

struct Trained {
  // [step][tensor]: "grad/transformer.wte.weight" and so on, as doubles; every element was owned exactly once.
  std::vector<std::map<std::string, std::vector<double>>> steps;
  std::vector<double> loss, norm;  // by step, from 1; as rank 0 tells them
  std::vector<long long> tokens;
  std::map<std::string, double> memory;  // most bytes at once by purpose, of rank 0
};

// Adds --dump; the folder is gone when this returns. Failed expectations inside are seen.
Trained train(const std::string& command_line);
// The same without dumps: only losses and norms.
Trained train_quietly(const std::string& command_line);

// The largest relative Frobenius distance of a tensor of any step, or relative difference of a loss or norm, and where.
struct Difference {
  double value = 0;
  std::string where;
};
Difference difference(const Trained& a, const Trained& b);
// Where two trainings are not equal bit for bit; empty: nowhere.
std::string first_unequal(const Trained& a, const Trained& b);

}  // namespace train::test
