// SPDX-License-Identifier: MIT
//
// The calls of a step by arithmetic: docs/trainer.md's formulas for the modes that split a layer, a sequence or the
// layers, for any combination of them.

#pragma once

#include "reference/train/core/mesh.h"
#include "reference/train/model/config.h"
#include "tests/train/run/traced.h"

namespace train::test {

struct Work {
  Config config;  // fp32
  Shape shape;
  bool sequence = false;             // --sp
  std::string context = "ring";      // --cp-algo
  std::string schedule = "1f1b";     // --schedule
  int chunks = 1;                    // --virtual-stages
  int zero = 0;                      // --zero, 0 or 1
  int64_t sequences = 4, accum = 2;  // --micro-batch, --accum

  Words words() const;
  std::string text() const;
};

// What `rank` calls in a step. With experts every token must go to all of them (top_k = experts): then routing is
// uniform, and no count depends on what the router has learnt.
Calls formula(const Work& work, int rank);

// Runs it, and compares every rank; the verdict must be healthy.
void expect_calls(const Work& work);

}  // namespace train::test
