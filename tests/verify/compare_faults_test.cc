// SPDX-License-Identifier: MIT
//
// Folders in which something is not as it should be, or not there: said, and never taken for the same.

#include <filesystem>

#include "tests/verify/files.h"
#include "tests/verify/made_training.h"

namespace lockstep::verify {
namespace {

TEST(Faults, CopiesThatDiffer) {
  const TemporaryFolder folder;
  const Training training;
  training.one(folder, "a", 1);
  MadeDump b(folder.path("b"), 4);
  const MadeTensor right = training.tensors.at("param/" + kWte);
  MadeTensor odd = right;
  odd.values[7] += 1e-15;  // far below any tolerance
  for (int rank = 0; rank < 4; rank++)
    b.tensor(1, rank, "param/" + kWte, rank == 2 ? odd : right, whole(right, Kind::replica));
  const Comparison comparison = compared(folder.path("a"), b.write(), {.only = "param/transformer.wte*"});
  ASSERT_EQ(comparison.status, Status::different);
  const Difference& first = comparison.differences.at(0);
  EXPECT_EQ(first.kind, "replicas-differ");
  EXPECT_EQ(first.side, 'B');
  EXPECT_EQ(first.ranks_b, std::vector<int>{2});
  EXPECT_EQ(first.index, (std::vector<int64_t>{1, 3}));
  EXPECT_NE(first.sentence.find("rank 2 is odd, ranks 0,1,3 agree"), std::string::npos) << first.sentence;
  EXPECT_EQ(comparison.all_differences, 1);  // the value itself is that of the others
}

TEST(Faults, GapsOverlapsAndShapes) {
  const TemporaryFolder folder;
  const MadeTensor t = made("t", {8, 3}), padded = made("t", {9, 3});
  const auto kind_of = [&](const std::string& name, const Placement& first, const Placement& second,
                           const MadeTensor& b) {
    MadeDump left(folder.path(name + "a"), 1), right(folder.path(name + "b"), 2);
    left.tensor(1, 0, "param/t", t, whole(t));
    right.tensor(1, 0, "param/t", b, first).tensor(1, 1, "param/t", b, second);
    const Comparison comparison = compared(left.write(), right.write(), {.only = "param/*"});
    return comparison.differences.empty() ? "none" : comparison.differences[0].kind;
  };
  EXPECT_EQ(kind_of("fine", flat(t, {{0, 12}}), flat(t, {{12, 24}}), t), "none");
  EXPECT_EQ(kind_of("gap", flat(t, {{0, 11}}), flat(t, {{12, 24}}), t), "gap");
  EXPECT_EQ(kind_of("overlap", flat(t, {{0, 13}}), flat(t, {{12, 24}}), t), "overlap");
  EXPECT_EQ(kind_of("shape", flat(padded, {{0, 12}}), flat(padded, {{12, 27}}), padded), "shape");
}

TEST(Faults, TensorsThatAreNotThere) {
  const std::string state = "adam_m/" + kHead;
  EXPECT_SEEN(seen_after([&](Training& t) { t.tensors.erase(state); }), state, "missing", "never updated");
  EXPECT_SEEN(seen_after([&](Training& t) {
                t.tensors["grad/extra"] = made("x", {2, 4});
              }),
              "grad/extra", "missing", "only B has it");
}

TEST(Faults, RanksThatDoNotAgreeOnANumber) {
  const TemporaryFolder folder;
  const Training training;
  training.one(folder, "a", 1);
  training.four(folder, "b", 1);
  dump::Metrics own = training.metrics;
  own.step = 1, own.rank = 3, own.loss = 5.5;
  dump::Writer(folder.path("b"), 3, 4).metrics(own);
  const Comparison comparison = compared(folder.path("a"), folder.path("b"));
  ASSERT_EQ(comparison.status, Status::different);
  EXPECT_EQ(comparison.differences[0].name, "loss");
  EXPECT_EQ(comparison.differences[0].kind, "ranks-disagree");
  EXPECT_NE(comparison.differences[0].sentence.find("5.25 on rank 0, 5.5 on rank 3"), std::string::npos)
      << comparison.differences[0].sentence;
}

TEST(Incomplete, MissingIsNeverTheSame) {
  const TemporaryFolder folder;
  const Training training;
  const std::string one = training.one(folder, "one", 3), four = training.four(folder, "four", 3);
  const auto incomplete = [&](const std::string& words, const CompareOptions& options = {}) {
    const Comparison comparison = compared(one, four, options);
    EXPECT_EQ(comparison.status, Status::incomplete);
    EXPECT_EQ(comparison.all_differences, 0);
    EXPECT_NE(all_incomplete(comparison).find(words), std::string::npos) << all_incomplete(comparison);
  };
  // A file of a rank.
  std::filesystem::remove(four + "/step000002/rank00001.safetensors");
  incomplete("step 2: B lacks files of rank 1: grad, adam_m, adam_v and param were not compared");
  EXPECT_EQ(compared(one, four, {.step = 1}).status, Status::same);
  // A file of a rank of which others hold all it held.
  MadeDump copies(folder.path("copies"), 2);
  for (int rank = 0; rank < 2; rank++) {
    const MadeTensor& tensor = training.tensors.at("param/" + kWte);
    copies.tensor(1, rank, "param/" + kWte, tensor, whole(tensor, dump::Placement::Kind::replica));
  }
  const std::string both = copies.write();
  EXPECT_EQ(compared(both, both).status, Status::same);
  std::filesystem::remove(both + "/step000001/rank00001.safetensors");
  EXPECT_EQ(compared(both, both).status, Status::incomplete);
  EXPECT_NE(all_incomplete(compared(both, both)).find("step 1: B lacks files of rank 1"), std::string::npos);
  // A step.
  std::filesystem::remove_all(four + "/step000002");
  incomplete("only A has tensors of step 2");
  // All of a category.
  Training less;
  less.tensors.erase("act/transformer.h.0.attn");
  less.four(folder, "less", 3);
  EXPECT_NE(
      all_incomplete(compared(one, folder.path("less"))).find("steps 1-3: B has no tensors act/: act was not compared"),
      std::string::npos);
  // All metrics; one of them.
  std::filesystem::remove(four + "/metrics.jsonl");
  incomplete("only A has metrics of steps 1-3");
  dump::Metrics silent = training.metrics;
  silent.step = 1, silent.norm = std::nullopt;
  dump::Writer(four, 0, 4).metrics(silent);
  incomplete("step 1: B does not say it: norm was not compared");
  // Everything.
  std::filesystem::rename(four + "/step000001", four + "/step000002");
  EXPECT_FALSE(compare_folders(one, four, {}));  // the files say where they belong
  std::filesystem::remove_all(four + "/step000002");
  std::filesystem::remove_all(four + "/step000003");
  std::filesystem::remove(four + "/metrics.jsonl");
  test::write_text(four + "/metrics.jsonl", "{\"step\": 9, \"rank\": 0, \"loss\": 1}\n");
  incomplete("nothing was compared");
}

TEST(Incomplete, SummandsAreNotJudgedUnlessSummed) {
  const TemporaryFolder folder;
  const MadeTensor t = made("t", {8, 3});
  MadeTensor half = t;
  for (double& value : half.values) value /= 2;
  MadeDump a(folder.path("a"), 1), b(folder.path("b"), 2);
  a.tensor(1, 0, "grad/t", t, whole(t));
  for (int rank = 0; rank < 2; rank++) b.tensor(1, rank, "grad/t", half, whole(half, Kind::partial));
  a.write();
  const Comparison unsaid = compared(folder.path("a"), b.write());
  EXPECT_EQ(unsaid.status, Status::incomplete);
  EXPECT_NE(all_incomplete(unsaid).find("--sum-partials"), std::string::npos) << all_incomplete(unsaid);
  CompareOptions sum;
  sum.sum_partials = true;
  EXPECT_EQ(compared(folder.path("a"), folder.path("b"), sum).status, Status::same);
}

// What the order of the rows says first is what came first.
TEST(Incomplete, WhatIsMissingFirstIsSaidFirstAndOnce) {
  const TemporaryFolder folder;
  const Training training;
  const std::string one = training.one(folder, "one", 3), four = training.four(folder, "four", 3);
  Training less;
  less.tensors.erase("act/transformer.h.0.attn");
  std::filesystem::remove_all(four);
  less.four(folder, "four", 3);
  std::filesystem::remove(four + "/step000002/rank00003.safetensors");
  const Comparison comparison = compared(one, four);
  ASSERT_EQ(comparison.incomplete.size(), 2u) << all_incomplete(comparison);
  EXPECT_EQ(comparison.incomplete[0], "steps 1,3: B has no tensors act/: act was not compared");
  EXPECT_EQ(comparison.incomplete[1],
            "step 2: B lacks files of rank 3: act, grad, adam_m, adam_v and param were not compared");
}

TEST(Incomplete, AMetricsLineThatIsCutOff) {
  const TemporaryFolder folder;
  const Training training;
  const std::string one = training.one(folder, "one", 1), four = training.four(folder, "four", 1);
  const std::string lines = test::read_text(four + "/metrics.jsonl");
  test::write_text(four + "/metrics.jsonl", lines.substr(0, lines.size() - 9));
  const Comparison comparison = compared(one, four);
  EXPECT_EQ(comparison.status, Status::incomplete);
  EXPECT_NE(all_incomplete(comparison).find("metrics.jsonl: line 4 is cut off"), std::string::npos);
  EXPECT_EQ(compared(one, four, {.only = "grad/*"}).status, Status::same);  // which does not ask for it
}

TEST(Names, ThatHaveNothingInCommonAreOneDifference) {
  const TemporaryFolder folder;
  Training a, b;
  for (const std::string& name : {kWte, kAttn, kHead}) {
    b.tensors["grad/model." + name] = b["grad/" + name];
    b.tensors.erase("grad/" + name);
  }
  const Comparison comparison = compared(a.one(folder, "a", 1), b.four(folder, "b", 1));
  ASSERT_EQ(comparison.all_differences, 1);
  EXPECT_EQ(comparison.differences[0].name, "grad/");
  EXPECT_EQ(comparison.differences[0].kind, "missing");
  EXPECT_EQ(comparison.differences[0].sentence,
            "A and B have no name in common: A has grad/lm_head.weight and 2 more, B grad/model.lm_head.weight and 2 "
            "more");
}

TEST(Names, OneThatIsAnotherIsGuessed) {
  const std::string attn = "param/" + kAttn, other = "param/transformer.h.0.attn.qkv.weight";
  EXPECT_SEEN(seen_after([&](Training& t) {
                t.tensors[other] = t[attn];
                t.tensors.erase(attn);
              }),
              attn, "missing", "only B has " + other + ", of the same shape [12, 4]: the same parameter");
}

TEST(Dtypes, OtherOnesAreNotedAndTheCoarserDecides) {
  const TemporaryFolder folder;
  const Training wide(Dtype::f64), narrow(Dtype::f32);
  const Comparison comparison = compared(wide.one(folder, "a", 1), narrow.four(folder, "b", 1));
  EXPECT_EQ(comparison.status, Status::same) << comparison.differences.at(0).name;
  ASSERT_EQ(comparison.notes.size(), 1u);
  EXPECT_EQ(comparison.notes[0].rfind("13 tensors are F64 in A and F32 in B, such as act/transformer.h.0.attn", 0), 0u)
      << comparison.notes[0];
  Training wrong(Dtype::f32);
  wrong.scale("grad/" + kAttn, 1.001);
  EXPECT_EQ(compared(folder.path("a"), wrong.four(folder, "c", 1)).differences.at(0).name, "grad/" + kAttn);
}

// fp32 gradients of activations in bf16 have the noise of these.
TEST(Dtypes, WhatItWasComputedInDecidesToo) {
  const TemporaryFolder folder;
  const MadeTensor t = made("t", {64}, Dtype::f32);
  const auto write = [&](const std::string& name, double factor, std::optional<Dtype> computed_in) {
    MadeTensor scaled = t;
    for (double& value : scaled.values) value *= factor;
    const std::vector<std::byte> bytes = local_bytes(scaled, whole(scaled));
    dump::Writer writer(folder.path(name), 0, 1, computed_in);
    writer.begin_step(1);
    writer.tensor("grad/t", Dtype::f32, bytes.data(), {64}, whole(scaled));
    writer.end_step();
    return folder.path(name);
  };
  const std::string one = write("one", 1, Dtype::bf16);
  const Comparison near = compared(one, write("near", 1.005, Dtype::bf16));
  EXPECT_EQ(near.status, Status::same);
  EXPECT_EQ(near.tolerances.at("F32").rtol, 5e-2);
  EXPECT_EQ(near.tolerances.at("F32").reason.rfind("computed in BF16: ", 0), 0u);
  EXPECT_EQ(compared(one, write("far", 1.1, Dtype::bf16)).status, Status::different);
  // Said by one side it holds, too; said by none it does not.
  const std::string unsaid = write("unsaid", 1.005, {});
  EXPECT_EQ(compared(one, unsaid).status, Status::same);
  EXPECT_EQ(compared(write("unsaid_one", 1, {}), unsaid).status, Status::different);
  EXPECT_EQ(compared(write("f64", 1, Dtype::f64), unsaid).tolerances.at("F32").rtol, 1e-5);
}

}  // namespace
}  // namespace lockstep::verify
