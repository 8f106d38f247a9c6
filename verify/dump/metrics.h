// SPDX-License-Identifier: MIT
//
// metrics.jsonl: a line a step and rank.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "interpose/trace/result.h"

namespace lockstep::dump {

// Numbers of the whole step, the same on every rank. A rank that does not know one (the loss, on all but the last stage
// of a pipeline) leaves it out.
struct Metrics {
  int64_t step = 0;
  int rank = 0;
  std::optional<double> loss = {};        // mean over all tokens of the step
  std::optional<int64_t> tokens = {};     // that were predicted, in the whole step
  std::optional<double> norm = {};        // of the whole gradient, before clipping
  std::optional<double> lr = {};          // used in this step
  std::optional<double> loss_scale = {};  // 1 where there is none
};

std::string metrics_line(const Metrics& metrics);  // ends in a newline
// One a step and rank, by step, then rank. Where a step was run again (a restart), its last line counts, and a note
// says so. A last line that is cut off is left out, and said in `missing`.
Result<std::vector<Metrics>> read_metrics(const std::string& path, const std::string& text,
                                          std::vector<std::string>& notes, std::vector<std::string>& missing);

}  // namespace lockstep::dump
