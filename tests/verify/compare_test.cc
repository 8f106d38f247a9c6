// SPDX-License-Identifier: MIT
//
// Whole folders: layouts that are the same, and each kind of mistake in values, as it is seen and as it is said.

#include "verify/compare/compare.h"

#include <cmath>

#include "tests/verify/made_training.h"

namespace lockstep::verify {
namespace {

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
  EXPECT_EQ(comparison.differences.at(3).name, "adam_m/" + kWte);
  EXPECT_EQ(comparison.all_differences, 2 * (2 + 1 + 9));
}

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
  EXPECT_SEEN(seen_after([&](Training& t) { t[grad].values[5] = std::nan(""); }), grad, "nan", "B has 1 NaN: ");
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

// A NaN is the same as nothing, not even as the same NaN: numbers that are none prove nothing.
TEST(NaNs, OnBothSidesAreADifference) {
  const TemporaryFolder folder;
  Training a;
  a["param/" + kWte].values[3] = std::nan("");
  const Comparison tensor = compared(a.one(folder, "a", 1), a.four(folder, "b", 1));
  EXPECT_EQ(tensor.status, Status::different);
  ASSERT_EQ(tensor.differences.size(), 1u);
  const Difference& first = tensor.differences[0];
  EXPECT_EQ(first.name, "param/" + kWte);
  EXPECT_EQ(first.kind, "nan");
  EXPECT_EQ(first.index, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(first.count, 1);
  EXPECT_NE(first.hint.find("NaNs on both sides"), std::string::npos) << first.hint;
  Training b;
  b.metrics.loss = std::nan("");
  const Comparison metric = compared(b.one(folder, "c", 1), b.four(folder, "d", 1));
  ASSERT_EQ(metric.differences.size(), 1u);
  EXPECT_EQ(metric.differences[0].name, "loss");
  EXPECT_EQ(metric.differences[0].kind, "nan");
}

}  // namespace
}  // namespace lockstep::verify
