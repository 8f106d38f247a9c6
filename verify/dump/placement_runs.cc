// SPDX-License-Identifier: MIT
//
// Placements as ranges of the flattened tensor: every form can be written so.

#include <algorithm>

#include "verify/dump/placement.h"

namespace lockstep::dump {
namespace {

// Ranges that meet are one.
void append(std::vector<Range>& ranges, const Range& range) {
  if (range[0] == range[1]) return;
  if (!ranges.empty() && ranges.back()[1] == range[0])
    ranges.back()[1] = range[1];
  else
    ranges.push_back(range);
}

// Dimensions that are whole from some dimension on make one run together.
std::vector<Range> slice_runs(const Placement& placement) {
  int64_t run = 1, elements = 1;
  bool whole = true;
  for (size_t d = placement.slice.size(); d-- > 0;) {
    const int64_t extent = placement.slice[d][1] - placement.slice[d][0];
    if (extent == 0) return {};
    if (whole) run *= extent;
    whole = whole && placement.slice[d] == Range{0, placement.global[d]};
    elements *= extent;
  }
  std::vector<Range> runs;
  for (int64_t local = 0; local < elements; local += run) {
    const int64_t begin = global_offset(placement, local);
    runs.push_back({begin, begin + run});
  }
  return runs;
}

}  // namespace

std::vector<Range> runs_of(const Placement& placement) {
  std::vector<Range> runs;
  if (!placement.slice.empty()) return slice_runs(placement);
  if (placement.flat.empty()) append(runs, {0, elements_of(placement.global)});
  for (const Range& range : placement.flat) append(runs, range);
  return runs;
}

}  // namespace lockstep::dump
