// SPDX-License-Identifier: MIT
//
// A circle in a graph of waits whose edges are told by the rank that makes them.

#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

struct Edge {
  size_t to = 0, rank = 0;
};
struct OnCircle {
  size_t at = 0, rank = 0;  // that of the edge to the next one
};

// The first one that a search depth first meets; empty = there is none. No edge leads from a point to itself.
std::vector<OnCircle> first_circle(const std::vector<std::vector<Edge>>& next);

}  // namespace lockstep
