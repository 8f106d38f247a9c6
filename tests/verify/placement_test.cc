// SPDX-License-Identifier: MIT

#include "verify/dump/placement.h"

#include <gtest/gtest.h>

namespace lockstep::dump {
namespace {

using Kind = Placement::Kind;

std::string error_of(const std::string& json, const std::vector<int64_t>& local) {
  const Result<Placement> placement = placement_of(json, local);
  return placement ? "" : placement.error();
}

TEST(Placement, GoesThroughItsText) {
  for (const Placement& placement :
       {Placement{{4, 6}, {{0, 2}, {3, 6}}, {}, Kind::owned}, Placement{{4, 6}, {}, {{0, 2}, {10, 14}}, Kind::replica},
        Placement{{2, 3}, {}, {}, Kind::partial}, Placement{{}, {}, {}, Kind::replica}}) {
    const std::vector<int64_t> local = placement.slice.empty()
                                           ? placement.flat.empty() ? placement.global : std::vector<int64_t>{6}
                                           : std::vector<int64_t>{2, 3};
    const Result<Placement> read = placement_of(placement_text(placement), local);
    ASSERT_TRUE(read) << read.error();
    EXPECT_EQ(read->global, placement.global);
    EXPECT_EQ(read->slice, placement.slice);
    EXPECT_EQ(read->flat, placement.flat);
    EXPECT_EQ(read->kind, placement.kind);
  }
}

TEST(Placement, WhatIsLeftOutIsTakenFromTheTensor) {
  const Result<Placement> whole = placement_of("{}", {3, 4});
  ASSERT_TRUE(whole) << whole.error();
  EXPECT_EQ(whole->global, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(whole->kind, Kind::replica);
  const Result<Placement> part = placement_of(R"({"global": [8], "slice": [[0, 3]]})", {3});
  ASSERT_TRUE(part) << part.error();
  EXPECT_EQ(part->kind, Kind::owned);
}

TEST(Placement, EachFaultIsNamed) {
  EXPECT_NE(error_of("[]", {3}).find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_of(R"({"slices": [[0, 3]]})", {3}).find("\"slices\""), std::string::npos);
  EXPECT_NE(error_of(R"({"kind": "shared"})", {3}).find("owned, replica and partial"), std::string::npos);
  EXPECT_NE(error_of(R"({"global": [4]})", {3}).find("is not the global shape [4]"), std::string::npos);
  EXPECT_NE(error_of(R"({"global": [4, 4], "slice": [[0, 3]]})", {3}).find("1 dimensions"), std::string::npos);
  EXPECT_NE(error_of(R"({"global": [4], "slice": [[2, 5]]})", {3}).find("2:5 of dimension 0"), std::string::npos);
  EXPECT_NE(error_of(R"({"global": [4], "slice": [[1, 3]]})", {3}).find("of shape [2]"), std::string::npos);
  EXPECT_NE(error_of(R"({"global": [4], "flat": [[0, 2]]})", {3}).find("hold 2 elements"), std::string::npos);
  EXPECT_NE(error_of(R"({"global": [4], "flat": [[2, 3], [1, 3]]})", {3}).find("out of order"), std::string::npos);
  EXPECT_NE(error_of(R"({"global": [4], "flat": [[0, 5]]})", {5}).find("leaves the 4 elements"), std::string::npos);
  EXPECT_NE(error_of(R"({"global": [4], "slice": [[0, 3]], "flat": [[0, 3]]})", {3}).find("both"), std::string::npos);
  EXPECT_NE(error_of(R"({"global": [9000000000, 9000000000], "flat": [[0, 3]]})", {3}).find("too many"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"global": [1e3]})", {3}).find("\"global\""), std::string::npos);
}

TEST(Placement, LocalOffsetsHaveTheirGlobalPlace) {
  const Placement slice{{4, 6}, {{1, 3}, {2, 5}}, {}, Kind::owned};
  EXPECT_EQ(global_offset(slice, 0), 1 * 6 + 2);
  EXPECT_EQ(global_offset(slice, 2), 1 * 6 + 4);
  EXPECT_EQ(global_offset(slice, 3), 2 * 6 + 2);
  const Placement flat{{4, 6}, {}, {{0, 2}, {10, 14}}, Kind::owned};
  EXPECT_EQ(global_offset(flat, 1), 1);
  EXPECT_EQ(global_offset(flat, 2), 10);
  EXPECT_EQ(global_offset(Placement{{4, 6}, {}, {}, Kind::owned}, 17), 17);
  EXPECT_EQ(index_of(17, {4, 6}), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(index_of(0, {}), (std::vector<int64_t>{}));
}

TEST(Placement, RunsAreWhatIsContiguous) {
  EXPECT_EQ(runs_of({{4, 6}, {}, {}, Kind::owned}), (std::vector<Range>{{0, 24}}));
  EXPECT_EQ(runs_of({{4, 6}, {{1, 3}, {0, 6}}, {}, Kind::owned}), (std::vector<Range>{{6, 18}}));
  EXPECT_EQ(runs_of({{4, 6}, {{1, 3}, {2, 4}}, {}, Kind::owned}), (std::vector<Range>{{8, 10}, {14, 16}}));
  EXPECT_EQ(runs_of({{2, 2, 3}, {{0, 2}, {1, 2}, {0, 3}}, {}, Kind::owned}), (std::vector<Range>{{3, 6}, {9, 12}}));
  EXPECT_EQ(runs_of({{4, 6}, {{1, 1}, {2, 4}}, {}, Kind::owned}), std::vector<Range>{});
  EXPECT_EQ(runs_of({{4, 6}, {}, {{0, 0}, {3, 5}, {5, 9}}, Kind::owned}), (std::vector<Range>{{3, 9}}));
  EXPECT_EQ(runs_of({{}, {}, {}, Kind::owned}), (std::vector<Range>{{0, 1}}));
}

}  // namespace
}  // namespace lockstep::dump
