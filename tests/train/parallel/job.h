// SPDX-License-Identifier: MIT
//
// A whole training job in any layout, ranks as threads, and what it leaves: global tensors put together from the parts
// of all ranks. The same batches in every layout, so that two jobs can be compared number by number.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "reference/train/core/mesh.h"
#include "reference/train/core/module.h"
#include "reference/train/model/config.h"

namespace train {

struct Layout {
  Shape shape;
  bool sequence = false;
  ContextWay context = ContextWay::ring;
  std::string schedule = "1f1b";
  int chunks = 1;
  std::string shard = "none";  // none, zero1, zero2, full
  int micro_batches = 2;       // of a data-parallel rank
  std::string name() const;
};

// 8 sequences a step of 16 positions, some targets masked, two documents in some.
struct Job {
  Config config;
  int steps = 2;  // the second sees what the first has updated, and its moments
};

struct Outcome {
  std::vector<double> losses, norms;                      // by step; the gradients' as the optimizer computes it
  std::map<std::string, std::vector<double>> gradients;   // of the first step, whole tensors without padding
  std::map<std::string, std::vector<double>> parameters;  // after the last
  size_t activation_bytes = 0;                            // most of any rank
};

constexpr int kSequences = 8, kLength = 16;
Config small_config();

// Every element must come from some rank, and ranks that have the same element must have the same number; expectations
// fail otherwise.
Outcome run_job(const Job& job, const Layout& layout);

// Largest relative Frobenius distance of any tensor, named.
struct Difference {
  double distance = 0;
  std::string where = "nothing";
};
Difference compare(const Outcome& a, const Outcome& b);

// Expects that a layout gives what one rank gives, to 1e-12. `kind` names the job: what one rank gives is kept.
void expect_equal(const std::string& kind, const Job& job, const Layout& layout);
const Outcome& one_rank(const std::string& kind, const Job& job);

Layout layout_of(int dp, int pp, int cp, int tp);
extern const Job kTied;                // learned positions, tied head
extern const Job kExperts, kCapacity;  // tied, four experts; the second drops tokens
extern const Job kRotary;              // rotary positions, head of its own, two key/value heads

}  // namespace train
