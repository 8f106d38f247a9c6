// SPDX-License-Identifier: MIT
//
// Placements as ranges of the flattened tensor: every form can be written so, and parts of parts only so.

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

Placement cut(const std::vector<int64_t>& global, size_t dimension, const std::vector<Range>& ranges,
              Placement::Kind kind) {
  Placement placement{global, {}, {}, kind};
  if (ranges.size() == 1) {
    for (const int64_t extent : global) placement.slice.push_back({0, extent});
    placement.slice[dimension] = ranges[0];
    return placement;
  }
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < global.size(); d++) (d < dimension ? outer : inner) *= d == dimension ? 1 : global[d];
  for (int64_t o = 0; o < outer; o++)
    for (const Range& range : ranges)
      append(placement.flat, {(o * global[dimension] + range[0]) * inner, (o * global[dimension] + range[1]) * inner});
  if (placement.flat.empty()) placement.flat.push_back({0, 0});
  return placement;
}

Placement flat_part(const Placement& part, int64_t begin, int64_t end, Placement::Kind kind) {
  Placement placement{part.global, {}, {}, kind};
  int64_t local = 0;  // where the run begins in the part
  for (const auto& [from, to] : runs_of(part)) {
    const int64_t first = std::max(begin, local), last = std::min(end, local + to - from);
    if (first < last) append(placement.flat, {from + first - local, from + last - local});
    local += to - from;
  }
  if (placement.flat.empty()) placement.flat.push_back({0, 0});
  return placement;
}

}  // namespace lockstep::dump
