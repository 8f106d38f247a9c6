// SPDX-License-Identifier: MIT
//
// Which rank does what: a rank is a point of the grid (dp, pp, cp, tp), and every group a slice of it. The whole of it
// is arithmetic on one page; no process and no communicator is needed to print or to test it.
//
// The dense grid multiplies to the world size. Its order string names the axes from the fastest to the slowest:
// "tp-cp-dp-pp" makes tensor-parallel ranks neighbours (Narayanan et al. 2021, 2104.04473, section 3.2: the group that
// talks most belongs into a node). Experts do not multiply the world: `ep` is carved out of dp x cp (x tp) as a second
// grid over the same ranks, whose axes are ep, edp (what remains of dp x cp x tp, over which an expert's gradients are
// summed) and pp.

#pragma once

#include <array>
#include <string>
#include <vector>

namespace train {

struct Shape {
  int dp = 1, pp = 1, cp = 1, tp = 1;
  int ep = 1;
  std::string order = "tp-cp-dp-pp";
  int world() const { return dp * pp * cp * tp; }
};

struct Place {
  int dp = 0, pp = 0, cp = 0, tp = 0;  // coordinates in the dense grid
  int ep = 0, edp = 0;                 // and in the experts' grid
};

class Mesh {
 public:
  // The shape must be legal: options.cc refuses others with the equation that fails.
  explicit Mesh(const Shape& shape);

  const Shape& shape() const { return shape_; }
  Place place(int rank) const { return places_[static_cast<size_t>(rank)]; }
  int rank(const Place& place) const;  // reads dp, pp, cp and tp
  // The ranks that share every coordinate with `rank` but those named: group(5, "tp"), group(5, "dp-cp"), group(5,
  // "ep"), "edp". Ascending along the order string, so that the position in it is the coordinate ("dp-cp": cp + dp * cp
  // size for the usual order).
  std::vector<int> group(int rank, const std::string& axes) const;
  // Every group of these axes, each once, by smallest rank.
  std::vector<std::vector<int>> groups(const std::string& axes) const;
  // The table of --print-mesh.
  std::string text() const;

 private:
  Shape shape_;
  std::vector<Place> places_;  // by rank
};

}  // namespace train
