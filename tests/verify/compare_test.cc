// SPDX-License-Identifier: MIT
//
// Whole folders: layouts that are the same, and each kind of mistake, as it is seen and as it is said.

#include "verify/compare/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "tests/demo/process.h"
#include "tests/verify/files.h"
#include "tests/verify/made_dumps.h"

namespace lockstep::verify {
namespace {

using namespace lockstep::test;

const std::string kWte = "transformer.wte.weight", kAttn = "transformer.h.0.attn.c_attn.weight",
                  kHead = "lm_head.weight";
const std::vector<int64_t> kWteShape = {10, 4}, kAttnShape = {12, 4}, kHeadShape = {10, 4};

// One training of three parameters, whose numbers a test may change before it is written.
struct Training {
  std::map<std::string, MadeTensor> tensors;
  dump::Metrics metrics{.loss = 5.25, .tokens = 96, .norm = 1.5, .lr = 1e-3, .loss_scale = 1.0};

  explicit Training(Dtype dtype = Dtype::f64) {
    for (const char* category : {"grad/", "param/", "adam_m/", "adam_v/"}) {
      tensors[category + kWte] = made(category + kWte, kWteShape, dtype);
      tensors[category + kAttn] = made(category + kAttn, kAttnShape, dtype);
      tensors[category + kHead] = made(category + kHead, kHeadShape, dtype);
    }
    tensors["act/transformer.h.0.attn"] = made("act", {2, 6, 4}, dtype);
    tensors["batch/tokens"] = {{2, 6}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 4}, Dtype::i32};
  }
  MadeTensor& operator[](const std::string& name) { return tensors.at(name); }
  void scale(const std::string& name, double by) {
    for (double& value : tensors.at(name).values) value *= by;
  }

  // Everything on one rank.
  std::string one(const TemporaryFolder& folder, const std::string& name, int64_t steps = 2) const {
    MadeDump dump(folder.path(name), 1);
    for (int64_t step = 1; step <= steps; step++) {
      for (const auto& [each, tensor] : tensors) dump.tensor(step, 0, each, tensor, whole(tensor));
      add_metrics(dump, step);
    }
    return dump.write();
  }

  // Four ranks: batches and activations cut by samples and copied, parameters copied, gradients and matrices cut by
  // rows, by columns and flat.
  std::string four(const TemporaryFolder& folder, const std::string& name, int64_t steps = 2) const {
    MadeDump dump(folder.path(name), 4);
    for (int64_t step = 1; step <= steps; step++) {
      for (const auto& [each, tensor] : tensors)
        for (int rank = 0; rank < 4; rank++) dump.tensor(step, rank, each, tensor, placement(each, tensor, rank));
      add_metrics(dump, step);
    }
    return dump.write();
  }

  static Placement placement(const std::string& name, const MadeTensor& tensor, int rank) {
    const int half = rank % 2;
    std::vector<dump::Range> all;
    for (const int64_t extent : tensor.shape) all.push_back({0, extent});
    if (name.rfind("batch/", 0) == 0 || name.rfind("act/", 0) == 0) {
      all[0] = {half, half + 1};
      return sliced(tensor, all, Kind::replica);
    }
    if (name.rfind("adam_", 0) == 0) {  // ZeRO: pieces of unequal length
      const int64_t count = dump::elements_of(tensor.shape), part = count / 4 + 1;
      const int64_t begin = std::min(count, rank * part);
      return flat(tensor, {{begin, std::min(count, begin + part)}});
    }
    if (name.find("c_attn") != std::string::npos) {
      all[1] = {rank, rank + 1};
      return sliced(tensor, all);
    }
    if (name.find("lm_head") != std::string::npos) {
      all[0] = {5 * half, 5 * half + 5};
      return sliced(tensor, all, Kind::replica);
    }
    return whole(tensor, Kind::replica);
  }

  void add_metrics(MadeDump& dump, int64_t step) const {
    dump::Metrics line = metrics;
    line.step = step;
    dump.metrics_on_all(line);
  }
};

Comparison compared(const std::string& a, const std::string& b, const CompareOptions& options = {}) {
  Result<Comparison> comparison = compare_folders(a, b, options);
  EXPECT_TRUE(comparison) << comparison.error();
  return comparison ? *comparison : Comparison{};
}

std::string all_incomplete(const Comparison& comparison) {
  std::string text;
  for (const std::string& each : comparison.incomplete) text += each + "\n";
  return text;
}

TEST(Compare, LayoutsOfTheSameAreTheSame) {
  const TemporaryFolder folder;
  const Training training;
  const std::string one = training.one(folder, "one"), four = training.four(folder, "four");
  for (const auto& [a, b] : {std::pair(one, one), std::pair(one, four), std::pair(four, one), std::pair(four, four)}) {
    const Comparison comparison = compared(a, b);
    EXPECT_EQ(comparison.status, Status::same) << all_incomplete(comparison);
    EXPECT_EQ(comparison.all_differences, 0);
    EXPECT_EQ(comparison.steps, (std::set<int64_t>{1, 2}));
    const Summary total = comparison.total();
    EXPECT_EQ(total.names.size(), 14u + 5);
    EXPECT_EQ(total.bitwise, 2 * (14 + 5));
    EXPECT_EQ(total.within, 0);
    // For each dtype and for the metrics, once.
    EXPECT_EQ(comparison.controls.size(), 3u);
    for (const Control& control : comparison.controls) EXPECT_EQ(control.fault, "");
  }
  EXPECT_EQ(compared(one, four).b.world_size, 4);
}

TEST(Compare, NoiseIsWithinAndIsTold) {
  const TemporaryFolder folder;
  Training a(Dtype::f32), b(Dtype::f32);
  b.scale("grad/" + kAttn, 1 + 3e-6);
  b.metrics.loss = 5.25 * (1 + 1e-7);
  const Comparison comparison = compared(a.one(folder, "a"), b.four(folder, "b"));
  EXPECT_EQ(comparison.status, Status::same);
  EXPECT_EQ(comparison.total().within, 4);
  EXPECT_EQ(comparison.total().worst_name, "grad/" + kAttn);
  EXPECT_NEAR(comparison.total().worst, 3e-6, 3e-7);
  const Comparison strict = compared(folder.path("a"), folder.path("b"), {.rtol = 1e-6});
  EXPECT_EQ(strict.status, Status::different);
  EXPECT_EQ(strict.all_differences, 2);
}

// What is wrong first is named, however much is wrong behind it.
TEST(Compare, TheFirstDifferenceIsTheFirstOfTheComputation) {
  const TemporaryFolder folder;
  Training a, b;
  for (const auto& [name, tensor] : a.tensors)
    if (name.rfind("param/", 0) == 0 || name.rfind("adam_", 0) == 0) b.scale(name, 1.1);
  b.scale("grad/" + kWte, 1.2);
  b.scale("grad/" + kAttn, 2);
  b.metrics.norm = 2;
  const Comparison comparison = compared(a.one(folder, "a"), b.four(folder, "b"));
  ASSERT_EQ(comparison.status, Status::different);
  const Difference& first = comparison.differences.at(0);
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.name, "grad/" + kAttn);  // backward: the head's gradient was computed before, and is right
  EXPECT_EQ(first.kind, "value");
  EXPECT_EQ(first.index, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(first.count, 48);
  EXPECT_EQ(first.ranks_b, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_NE(first.hint.find("B is 2 times A"), std::string::npos) << first.hint;
  EXPECT_EQ(comparison.differences.at(1).name, "grad/" + kWte);
  EXPECT_EQ(comparison.differences.at(2).name, "norm");
  EXPECT_EQ(comparison.differences.at(3).name, "param/" + kWte);
  EXPECT_EQ(comparison.all_differences, 2 * (2 + 1 + 9));
}

struct Seen {
  std::string name, kind, hint;
};

// The first difference after a change to a four-rank training.
Seen seen_after(const std::function<void(Training&)>& change,
                const std::function<void(const std::string&)>& damage = {}) {
  const TemporaryFolder folder;
  Training a, b;
  change(b);
  a.one(folder, "a", 1);
  b.four(folder, "b", 1);
  if (damage) damage(folder.path("b"));
  const Comparison comparison = compared(folder.path("a"), folder.path("b"));
  if (comparison.differences.empty()) return {"nothing", all_incomplete(comparison), ""};
  const Difference& first = comparison.differences[0];
  return {first.name, first.kind, first.sentence + " / " + first.hint};
}

#define EXPECT_SEEN(seen, wanted_name, wanted_kind, words)                       \
  do {                                                                           \
    const Seen it = seen;                                                        \
    EXPECT_EQ(it.name, wanted_name);                                             \
    EXPECT_EQ(it.kind, wanted_kind);                                             \
    EXPECT_NE(it.hint.find(words), std::string::npos) << "it says: " << it.hint; \
  } while (false)

TEST(Hints, FactorsAreNamed) {
  const std::string grad = "grad/" + kAttn;
  EXPECT_SEEN(seen_after([&](Training& t) { t.scale(grad, 4); }), grad, "value",
              "B is 4 times A, the number of B's ranks");
  EXPECT_SEEN(seen_after([&](Training& t) { t.scale(grad, 0.25); }), grad, "value",
              "B is A / 4, the number of B's ranks");
  EXPECT_SEEN(seen_after([&](Training& t) { t.scale(grad, 65536); }), grad, "value",
              "loss scale that was not divided out");
  EXPECT_SEEN(seen_after([&](Training& t) { t.scale(grad, 0.7313); }), grad, "value", "mean of means");
  EXPECT_SEEN(seen_after([&](Training& t) { t.scale(grad, -1); }), grad, "value", "other sign");
  EXPECT_SEEN(seen_after([&](Training& t) { t.scale(grad, 0); }), grad, "value", "all zeros");
  EXPECT_SEEN(seen_after([&](Training& t) { t[grad].values[5] = std::nan(""); }), grad, "nan", "B has 1 NaNs");
}

TEST(Hints, OneRanksPartIsNamed) {
  const std::string grad = "grad/" + kAttn;
  EXPECT_SEEN(seen_after([&](Training& t) {
                for (size_t i = 2; i < 48; i += 4) t[grad].values[i] += 0.3 * std::cos(static_cast<double>(i));
              }),
              grad, "value", "only elements of rank 2 of B differ; those of ranks 0,1,3 are right");
}

TEST(Hints, MovedElementsAreSeen) {
  const std::string grad = "grad/" + kAttn;
  EXPECT_SEEN(seen_after([&](Training& t) {
                const std::vector<double> values = t[grad].values;
                for (size_t i = 0; i < 48; i++) t[grad].values[i] = values[i % 12 * 4 + i / 12];
              }),
              grad, "value", "B is A transposed");
  EXPECT_SEEN(seen_after([&](Training& t) {
                for (size_t row = 0; row < 12; row++)
                  std::swap(t[grad].values[row * 4 + 1], t[grad].values[row * 4 + 3]);
              }),
              grad, "value", "rank 1 of B holds what A has at the place of rank 3");
  EXPECT_SEEN(seen_after([&](Training& t) {
                std::vector<double>& values = t["batch/tokens"].values;
                for (size_t i = 0; i < 12; i++) values[i] = i % 6 < 5 ? values[i + 1] : 0;
              }),
              "batch/tokens", "value", "moved by one along dimension 1");
}

TEST(Hints, OtherRandomNumbersAreSeen) {
  const std::string param = "param/" + kAttn;
  EXPECT_SEEN(seen_after([&](Training& t) {
                for (size_t i = 0; i < 48; i++) t[param].values[i] = std::sin(1.9 * static_cast<double>(i * i));
              }),
              param, "value", "nothing to do with each other");
}

TEST(Hints, MetricsToo) {
  EXPECT_SEEN(seen_after([](Training& t) { t.metrics.norm = 1.5 * 2; }), "norm", "value", "sqrt(4) times A's");
  EXPECT_SEEN(seen_after([](Training& t) { t.metrics.norm = 1.5 / std::sqrt(2); }), "norm", "value", "A's / sqrt(2)");
  EXPECT_SEEN(seen_after([](Training& t) { t.metrics.norm = 1.6; }), "norm", "value", "too large");
  EXPECT_SEEN(seen_after([](Training& t) { t.metrics.loss = 5.3; }), "loss", "value", "instead of over all tokens");
  EXPECT_SEEN(seen_after([](Training& t) { t.metrics.lr = 4e-3; }), "lr", "value", "step counter");
  EXPECT_SEEN(seen_after([](Training& t) { t.metrics.tokens = 95; }), "tokens", "value", "number of tokens");
  EXPECT_SEEN(seen_after([](Training& t) { t.metrics.loss = std::nan(""); }), "loss", "nan", "");
}

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
  incomplete("step 2: B lacks files of rank 1: grad was not compared");
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

TEST(Options, OnlyAndStep) {
  const TemporaryFolder folder;
  Training a, b;
  b.scale("grad/" + kWte, 3);
  b.metrics.loss = 1.0;
  const std::string one = a.one(folder, "a"), other = b.four(folder, "b");
  EXPECT_EQ(compared(one, other, {.only = "grad/*"}).all_differences, 2);
  EXPECT_EQ(compared(one, other, {.only = "wte"}).total().names.size(), 4u);
  EXPECT_EQ(compared(one, other, {.only = "param/*"}).status, Status::same);
  EXPECT_EQ(compared(one, other, {.only = "loss"}).all_differences, 2);
  EXPECT_EQ(compared(one, other, {.only = "loss"}).total().names.size(), 1u);
  EXPECT_EQ(compared(one, other, {.step = 2}).steps, std::set<int64_t>{2});
  const auto error = [&](const CompareOptions& options) {
    const Result<Comparison> comparison = compare_folders(one, other, options);
    return comparison ? "" : comparison.error();
  };
  EXPECT_NE(error({.step = 9}).find("neither folder has that step; A has tensors of steps 1-2"), std::string::npos)
      << error({.step = 9});
  EXPECT_NE(error({.only = "gard/*"}).find("no tensor and no metric"), std::string::npos);
}

TEST(Notes, NaNsOnBothSidesAreTold) {
  const TemporaryFolder folder;
  Training a;
  a["param/" + kWte].values[3] = std::nan("");
  const Comparison comparison = compared(a.one(folder, "a", 1), a.four(folder, "b", 1));
  EXPECT_EQ(comparison.status, Status::same);
  ASSERT_EQ(comparison.notes.size(), 1u);
  EXPECT_NE(comparison.notes[0].find("1 NaNs, the same ones in A and B"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::verify
