// SPDX-License-Identifier: MIT
//
// From what the rules found to words and stacks: the sentence that is the verdict, what to check first, and the
// culprit's stack beside that of a rank that did as most did. All reports print what is composed here.

#pragma once

#include <string>

#include "tools/explain/symbols.h"
#include "tools/judge/finding.h"
#include "tools/judge/rules.h"

namespace lockstep {

void explain(const Evidence& evidence, Symbolizer& symbolizer, Diagnosis& diagnosis);

// One line per state a rank can be in, for the table of ranks.
struct RankState {
  std::string
      state;  // "has not called AllReduce #17 on tp", "in AllReduce #17 on tp, not returned", "ended: exit status 0"
  std::string last_call;  // "AllReduce #16 on tp"
  std::string step;       // "5", or "-"
  std::string sign;       // last sign of life: "12:03:04" local time
};
RankState rank_state(const Evidence& evidence, const Diagnosis& diagnosis, size_t rank);

// "41 s", "2 min 5 s", "350 ms"
std::string duration_text(int64_t ns);
// "12:03:04" local time
std::string clock_text(int64_t wall_ns);

// "AllReduce(4096 x float32, sum)"
std::string signature_text(const Signature& signature);

// "rank 2", "ranks 0-3,5"
std::string ranks_text(const Run& run, const std::vector<size_t>& ranks);

std::string verdict_sentence(const Evidence& evidence, const Diagnosis& diagnosis);

}  // namespace lockstep
