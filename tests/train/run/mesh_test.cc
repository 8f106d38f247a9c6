// SPDX-License-Identifier: MIT
//
// The grid: one shape by hand, and for all shapes of up to 16 ranks, in several orders, what must hold of any grid.

#include "reference/train/core/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace train {
namespace {

using Ranks = std::vector<int>;

TEST(Mesh, TwoByTwoByTwoByTwoByHand) {
  const Mesh mesh({.dp = 2, .pp = 2, .cp = 2, .tp = 2, .ep = 4});
  // Order tp-cp-dp-pp: rank = tp + 2 cp + 4 dp + 8 pp; within a stage ep = rank % 4.
  const Place place = mesh.place(13);
  EXPECT_EQ(place.tp, 1);
  EXPECT_EQ(place.cp, 0);
  EXPECT_EQ(place.dp, 1);
  EXPECT_EQ(place.pp, 1);
  EXPECT_EQ(place.ep, 1);
  EXPECT_EQ(place.edp, 1);
  EXPECT_EQ(mesh.group(13, "tp"), (Ranks{12, 13}));
  EXPECT_EQ(mesh.group(13, "cp"), (Ranks{13, 15}));
  EXPECT_EQ(mesh.group(13, "dp"), (Ranks{9, 13}));
  EXPECT_EQ(mesh.group(13, "pp"), (Ranks{5, 13}));
  EXPECT_EQ(mesh.group(13, "dp-cp"), (Ranks{9, 11, 13, 15}));
  EXPECT_EQ(mesh.group(13, "tp-pp"), (Ranks{4, 5, 12, 13}));
  EXPECT_EQ(mesh.group(13, "ep"), (Ranks{12, 13, 14, 15}));
  EXPECT_EQ(mesh.group(13, "edp"), (Ranks{9, 13}));
  EXPECT_EQ(mesh.groups("pp").size(), 8u);
}

TEST(Mesh, OrderDecidesWhoAreNeighbours) {
  const Mesh mesh({.dp = 2, .pp = 2, .cp = 1, .tp = 2, .order = "pp-dp-tp-cp"});
  EXPECT_EQ(mesh.group(0, "pp"), (Ranks{0, 1}));
  EXPECT_EQ(mesh.group(0, "dp"), (Ranks{0, 2}));
  EXPECT_EQ(mesh.group(0, "tp"), (Ranks{0, 4}));
}

std::vector<Shape> all_shapes(int most) {
  std::vector<Shape> shapes;
  for (int dp = 1; dp <= most; ++dp)
    for (int pp = 1; dp * pp <= most; ++pp)
      for (int cp = 1; dp * pp * cp <= most; ++cp)
        for (int tp = 1; dp * pp * cp * tp <= most; ++tp)
          for (int ep = 1; ep <= dp * cp * tp; ++ep)
            if (dp * cp * tp % ep == 0)
              for (const char* order : {"tp-cp-dp-pp", "dp-pp-tp-cp", "pp-dp-cp-tp", "cp-tp-pp-dp"})
                shapes.push_back({dp, pp, cp, tp, ep, order});
  return shapes;
}

// Groups of some axes are a partition of the world into groups of one size; a rank's position in its group is its
// coordinate.
void check_groups(const Mesh& mesh, const std::string& axes, int size, int Place::*coordinate) {
  Ranks seen;
  for (const Ranks& group : mesh.groups(axes)) {
    ASSERT_EQ(static_cast<int>(group.size()), size) << axes;
    for (size_t i = 0; i < group.size(); ++i) {
      seen.push_back(group[i]);
      ASSERT_EQ(mesh.place(group[i]).*coordinate, static_cast<int>(i)) << axes;
      ASSERT_EQ(mesh.group(group[i], axes), group) << axes;
    }
  }
  std::sort(seen.begin(), seen.end());
  Ranks everyone(static_cast<size_t>(mesh.shape().world()));
  std::iota(everyone.begin(), everyone.end(), 0);
  ASSERT_EQ(seen, everyone) << axes;
}

TEST(Mesh, EveryShapeOfUpToSixteenRanks) {
  int shapes = 0;
  for (const Shape& s : all_shapes(16)) {
    SCOPED_TRACE(s.order + " dp " + std::to_string(s.dp) + " pp " + std::to_string(s.pp) + " cp " +
                 std::to_string(s.cp) + " tp " + std::to_string(s.tp) + " ep " + std::to_string(s.ep));
    const Mesh mesh(s);
    std::set<std::array<int, 3>> experts;
    for (int rank = 0; rank < s.world(); ++rank) {
      const Place p = mesh.place(rank);
      ASSERT_EQ(mesh.rank(p), rank);
      experts.insert({p.ep, p.edp, p.pp});
    }
    ASSERT_EQ(static_cast<int>(experts.size()), s.world());  // the second grid is a grid of the same ranks
    check_groups(mesh, "dp", s.dp, &Place::dp);
    check_groups(mesh, "pp", s.pp, &Place::pp);
    check_groups(mesh, "cp", s.cp, &Place::cp);
    check_groups(mesh, "tp", s.tp, &Place::tp);
    check_groups(mesh, "ep", s.ep, &Place::ep);
    check_groups(mesh, "edp", s.dp * s.cp * s.tp / s.ep, &Place::edp);
    ++shapes;
  }
  EXPECT_GT(shapes, 1000);
}

TEST(Mesh, SixtyFourRanks) {
  const Mesh mesh({.dp = 2, .pp = 4, .cp = 1, .tp = 8, .ep = 2});
  for (int rank = 0; rank < 64; ++rank) {
    const Place p = mesh.place(rank);
    EXPECT_EQ(p.tp + 8 * p.dp + 16 * p.pp, rank);
    EXPECT_EQ(p.ep + 2 * p.edp, rank % 16);
  }
  check_groups(mesh, "tp", 8, &Place::tp);
  check_groups(mesh, "dp", 2, &Place::dp);
  check_groups(mesh, "pp", 4, &Place::pp);
  check_groups(mesh, "ep", 2, &Place::ep);
  check_groups(mesh, "edp", 8, &Place::edp);
}

TEST(Mesh, TextNamesEveryRankAndGroup) {
  const std::string text = Mesh({.dp = 2, .pp = 1, .cp = 1, .tp = 2}).text();
  EXPECT_NE(text.find("4 ranks = dp 2 x pp 1 x cp 1 x tp 2"), std::string::npos) << text;
  EXPECT_NE(text.find("tp     [0 1] [2 3]"), std::string::npos) << text;
  EXPECT_NE(text.find("dp     [0 2] [1 3]"), std::string::npos) << text;
}

// Experts: a second grid of the same ranks. A group's ranks have different tokens; those of edp have the same experts.
TEST(Mesh, TextNamesTheGridOfExperts) {
  EXPECT_EQ(Mesh({.dp = 2, .pp = 2, .cp = 1, .tp = 2, .ep = 2}).text(),
            "8 ranks = dp 2 x pp 2 x cp 1 x tp 2, order tp-cp-dp-pp; experts: ep 2 x edp 2 in each of 2 stages\n\n"
            "rank  dp  pp  cp  tp   ep edp\n"
            "   0   0   0   0   0    0   0\n"
            "   1   0   0   0   1    1   0\n"
            "   2   1   0   0   0    0   1\n"
            "   3   1   0   0   1    1   1\n"
            "   4   0   1   0   0    0   0\n"
            "   5   0   1   0   1    1   0\n"
            "   6   1   1   0   0    0   1\n"
            "   7   1   1   0   1    1   1\n\n"
            "tp     [0 1] [2 3] [4 5] [6 7]\n"
            "cp     [0] [1] [2] [3] [4] [5] [6] [7]\n"
            "dp     [0 2] [1 3] [4 6] [5 7]\n"
            "dp-cp  [0 2] [1 3] [4 6] [5 7]\n"
            "pp     [0 4] [1 5] [2 6] [3 7]\n"
            "ep     [0 1] [2 3] [4 5] [6 7]\n"
            "edp    [0 2] [1 3] [4 6] [5 7]\n");
}

}  // namespace
}  // namespace train
