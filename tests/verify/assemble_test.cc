// SPDX-License-Identifier: MIT

#include "verify/assemble/assemble.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/verify/made_dumps.h"

namespace lockstep::verify {
namespace {

using namespace lockstep::test;
using FaultKind = Fault::Kind;

std::vector<double> values_in(const GlobalTensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.elements));
  BlockReader reader(tensor);
  for (int64_t begin = 0; begin < tensor.elements; begin += BlockReader::kBlock) {
    const int64_t count = std::min(BlockReader::kBlock, tensor.elements - begin);
    dump::to_double(reader.dtype(), reader.block(begin, count), static_cast<size_t>(count), values.data() + begin);
  }
  return values;
}

std::string faults_text(const Assembled& assembled) {
  std::string text;
  for (const Fault& fault : assembled.faults) text += std::string(name_of(fault.kind)) + ": " + fault.sentence + "\n";
  return text;
}

void expect_whole(const MadeShards& shards, const MadeTensor& tensor) {
  const Assembled assembled = assemble("t", shards.shards);
  EXPECT_EQ(faults_text(assembled), "");
  EXPECT_EQ(assembled.tensor.shape, tensor.shape);
  EXPECT_EQ(values_in(assembled.tensor), tensor.values);
}

TEST(Assemble, SlicesOfEitherDimension) {
  const MadeTensor t = made("t", {4, 6});
  expect_whole(MadeShards().add(0, t, whole(t)), t);
  expect_whole(MadeShards().add(0, t, sliced(t, {{0, 1}, {0, 6}})).add(1, t, sliced(t, {{1, 4}, {0, 6}})), t);
  expect_whole(MadeShards().add(0, t, sliced(t, {{0, 4}, {4, 6}})).add(1, t, sliced(t, {{0, 4}, {0, 4}})), t);
  expect_whole(MadeShards()
                   .add(0, t, sliced(t, {{0, 2}, {0, 3}}))
                   .add(1, t, sliced(t, {{0, 2}, {3, 6}}))
                   .add(2, t, sliced(t, {{2, 4}, {0, 3}}))
                   .add(3, t, sliced(t, {{2, 4}, {3, 6}})),
               t);
}

TEST(Assemble, FlatShardsAndScalars) {
  const MadeTensor t = made("t", {3, 5}, Dtype::f32);
  MadeTensor rounded = t;
  for (double& value : rounded.values) value = static_cast<float>(value);
  expect_whole(MadeShards()
                   .add(0, rounded, flat(t, {{0, 7}}))
                   .add(1, rounded, flat(t, {{7, 15}}))
                   .add(2, rounded, flat(t, {{0, 0}})),
               rounded);
  // Queries, keys and values of a tensor parallel rank: three ranges of rows.
  expect_whole(MadeShards()
                   .add(0, rounded, flat(t, {{0, 2}, {5, 7}, {10, 12}}))
                   .add(1, rounded, flat(t, {{2, 5}, {7, 10}, {12, 15}})),
               rounded);
  const MadeTensor scalar = made("s", {});
  expect_whole(MadeShards().add(0, scalar, whole(scalar)), scalar);
  const MadeTensor empty = made("e", {0, 4});
  expect_whole(MadeShards().add(0, empty, whole(empty)), empty);
}

// Blocks end in the middle of rows, and rows in the middle of blocks.
TEST(Assemble, ManyPiecesToABlockAndManyBlocksToAPiece) {
  const MadeTensor t = made("t", {70, 300});
  MadeShards columns;
  for (int rank = 0; rank < 3; rank++) columns.add(rank, t, sliced(t, {{0, 70}, {rank * 100, rank * 100 + 100}}));
  expect_whole(columns, t);
  expect_whole(MadeShards().add(0, t, flat(t, {{0, 15'001}})).add(1, t, flat(t, {{15'001, 21'000}})), t);
}

// Any cut into shards, with copies of some, gives the tensor back.
TEST(Assemble, RandomCuts) {
  std::mt19937 random(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 200; round++) {
    const MadeTensor t = made("r" + std::to_string(round), {1 + below(5), 1 + below(40), 1 + below(6)});
    const int64_t all = dump::elements_of(t.shape);
    std::vector<int64_t> cuts = {0, all};
    for (int64_t i = below(6); i > 0; i--) cuts.push_back(below(all + 1));
    std::sort(cuts.begin(), cuts.end());
    MadeShards shards;
    const int ranks = 1 + static_cast<int>(below(4));
    std::vector<std::vector<dump::Range>> owned(static_cast<size_t>(ranks));
    for (size_t i = 1; i < cuts.size(); i++) owned[static_cast<size_t>(below(ranks))].push_back({cuts[i - 1], cuts[i]});
    const bool copies = below(2) == 1;
    for (int rank = 0; rank < ranks; rank++)
      if (!owned[static_cast<size_t>(rank)].empty())
        shards.add(rank, t, flat(t, owned[static_cast<size_t>(rank)], copies ? Kind::replica : Kind::owned));
    const int64_t row = below(t.shape[0]);
    if (copies) shards.add(ranks, t, sliced(t, {{row, row + 1}, {0, t.shape[1]}, {0, t.shape[2]}}, Kind::replica));
    expect_whole(shards, t);
  }
}

TEST(Assemble, CopiesThatAreTheSame) {
  const MadeTensor t = made("t", {4, 6});
  expect_whole(MadeShards().add(0, t, whole(t, Kind::replica)).add(1, t, whole(t, Kind::replica)), t);
  expect_whole(MadeShards().add(0, t, whole(t, Kind::replica)).add(1, t, whole(t, Kind::owned)), t);
  const auto upper = sliced(t, {{0, 2}, {0, 6}}, Kind::replica), lower = sliced(t, {{2, 4}, {0, 6}}, Kind::replica);
  expect_whole(MadeShards().add(0, t, upper).add(1, t, lower).add(2, t, upper).add(3, t, lower), t);
}

const Fault& only_fault(const Assembled& assembled) {
  EXPECT_EQ(assembled.faults.size(), 1u) << faults_text(assembled);
  static const Fault none{};
  return assembled.faults.empty() ? none : assembled.faults[0];
}

TEST(Assemble, TheOddCopyIsNamed) {
  const MadeTensor t = made("t", {4, 6});
  MadeTensor odd = t;
  odd.values[14] = 99;
  MadeShards shards;
  for (int rank = 0; rank < 4; rank++) shards.add(rank, rank == 0 ? odd : t, whole(t, Kind::replica));
  const Assembled assembled = assemble("t", shards.shards);
  const Fault& fault = only_fault(assembled);
  EXPECT_EQ(fault.kind, FaultKind::replicas_differ);
  EXPECT_EQ(fault.ranks, std::vector<int>{0});
  EXPECT_EQ(fault.element, 14);
  EXPECT_NE(fault.sentence.find("rank 0 is odd, ranks 1-3 agree; first at element [2, 2]: 99 on rank 0, "),
            std::string::npos)
      << fault.sentence;
  EXPECT_TRUE(assembled.usable());
}

TEST(Assemble, ATieNamesNobody) {
  const MadeTensor t = made("t", {6});
  MadeTensor odd = t;
  odd.values[5] = 99;
  MadeShards shards;
  for (int rank = 0; rank < 4; rank++) shards.add(rank, rank % 2 ? odd : t, whole(t, Kind::replica));
  const Assembled assembled = assemble("t", shards.shards);
  EXPECT_EQ(only_fault(assembled).ranks, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_NE(assembled.faults[0].sentence.find("ranks 0,2 | ranks 1,3"), std::string::npos)
      << assembled.faults[0].sentence;
}

TEST(Assemble, CopiesOfSlicesAreCompared) {
  const MadeTensor t = made("t", {4, 6});
  MadeTensor odd = t;
  odd.values[17] = 99;
  const auto left = sliced(t, {{0, 4}, {0, 3}}, Kind::replica), right = sliced(t, {{0, 4}, {3, 6}}, Kind::replica);
  const Assembled assembled =
      assemble("t", MadeShards().add(0, t, left).add(1, t, right).add(2, t, left).add(3, odd, right).shards);
  const Fault& fault = only_fault(assembled);
  EXPECT_EQ(fault.kind, FaultKind::replicas_differ);
  EXPECT_EQ(fault.element, 17);
  EXPECT_EQ(fault.ranks, (std::vector<int>{1, 3}));
}

TEST(Assemble, GapsAreNamed) {
  const MadeTensor t = made("t", {4, 6});
  const Assembled end = assemble("t", MadeShards().add(0, t, sliced(t, {{0, 3}, {0, 6}})).shards);
  EXPECT_EQ(only_fault(end).kind, FaultKind::gap);
  EXPECT_EQ(end.faults[0].element, 18);
  EXPECT_EQ(end.faults[0].count, 6);
  EXPECT_NE(end.faults[0].sentence.find("6 of its 24 elements are on no rank, first element [3, 0]"),
            std::string::npos);
  EXPECT_FALSE(end.usable());
  const Assembled middle =
      assemble("t", MadeShards().add(0, t, flat(t, {{0, 7}})).add(1, t, flat(t, {{9, 24}})).shards);
  EXPECT_EQ(only_fault(middle).element, 7);
  EXPECT_EQ(middle.faults[0].count, 2);
  EXPECT_EQ(only_fault(assemble("t", MadeShards().add(0, t, flat(t, {{0, 0}})).shards)).count, 24);
}

TEST(Assemble, OverlapsAreNamed) {
  const MadeTensor t = made("t", {4, 6});
  const Assembled rows =
      assemble("t", MadeShards().add(0, t, flat(t, {{0, 14}})).add(3, t, flat(t, {{11, 24}})).shards);
  const Fault& fault = only_fault(rows);
  EXPECT_EQ(fault.kind, FaultKind::overlap);
  EXPECT_EQ(fault.element, 11);
  EXPECT_EQ(fault.count, 3);
  EXPECT_EQ(fault.ranks, (std::vector<int>{0, 3}));
  EXPECT_NE(fault.sentence.find("first element [1, 5] by ranks 0 and 3"), std::string::npos) << fault.sentence;
  EXPECT_EQ(only_fault(assemble("t", MadeShards().add(0, t, whole(t)).add(1, t, whole(t)).shards)).count, 24);
  // A copy under both does not hide it.
  EXPECT_EQ(
      only_fault(
          assemble("t", MadeShards().add(0, t, whole(t, Kind::replica)).add(1, t, whole(t)).add(2, t, whole(t)).shards))
          .kind,
      FaultKind::overlap);
}

TEST(Assemble, RanksMustAgreeOnWhatItIs) {
  const MadeTensor t = made("t", {4}), other = made("t", {5}), single = made("t", {4}, Dtype::f32);
  EXPECT_NE(
      faults_text(
          assemble("t",
                   MadeShards().add(0, t, whole(t, Kind::replica)).add(1, other, whole(other, Kind::replica)).shards))
          .find("global shape is rank 0 [4], rank 1 [5]"),
      std::string::npos);
  EXPECT_NE(
      faults_text(
          assemble("t", MadeShards().add(0, t, whole(t, Kind::replica)).add(1, single, whole(t, Kind::replica)).shards))
          .find("dtype is rank 0 F64, rank 1 F32"),
      std::string::npos);
  EXPECT_NE(
      faults_text(
          assemble("t", MadeShards().add(0, t, whole(t, Kind::partial)).add(1, t, whole(t, Kind::replica)).shards))
          .find("rank 0 partial, rank 1 replica"),
      std::string::npos);
}

TEST(Assemble, SummandsAreSummedOnlyWhenThatIsSaid) {
  const MadeTensor t = made("t", {3, 5}), u = made("u", {3, 5});
  MadeShards shards;
  shards.add(0, t, whole(t, Kind::partial)).add(1, u, sliced(u, {{0, 3}, {1, 5}}, Kind::partial));
  const Assembled not_said = assemble("t", shards.shards);
  EXPECT_EQ(only_fault(not_said).kind, FaultKind::not_summed);
  EXPECT_FALSE(not_said.usable());
  const Assembled said = assemble("t", shards.shards, {true});
  EXPECT_EQ(faults_text(said), "");
  std::vector<double> sum = t.values;
  for (size_t i = 0; i < sum.size(); i++) sum[i] += i % 5 ? u.values[i] : 0;
  EXPECT_EQ(values_in(said.tensor), sum);
  MadeShards half;
  half.add(0, t, flat(t, {{0, 4}}, Kind::partial));
  EXPECT_EQ(only_fault(assemble("t", half.shards, {true})).kind, FaultKind::gap);
}

TEST(Assemble, RanksReadWell) {
  EXPECT_EQ(ranks_text({2}), "rank 2");
  EXPECT_EQ(ranks_text({3, 0, 1, 2, 5}), "ranks 0-3,5");
  EXPECT_EQ(ranks_text({0, 1, 4, 5, 7}), "ranks 0,1,4,5,7");
}

}  // namespace
}  // namespace lockstep::verify
