// SPDX-License-Identifier: MIT
//
// The loss scale: when it moves, and what a training with it does.

#include "reference/train/run/loss_scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/train/run/harness.h"
#include "verify/dump/folder.h"

namespace train {
namespace {

TEST(LossScale, HalvesOnOverflowAndDoublesAfterGoodSteps) {
  LossScale scale(1024, 3);
  scale.finish_step(true);
  scale.finish_step(true);
  EXPECT_EQ(scale.value(), 1024);
  scale.finish_step(false);  // begins to count anew
  EXPECT_EQ(scale.value(), 512);
  scale.finish_step(true);
  scale.finish_step(true);
  EXPECT_EQ(scale.value(), 512);
  scale.finish_step(true);
  EXPECT_EQ(scale.value(), 1024);
  for (int i = 0; i < 3; ++i) scale.finish_step(true);
  EXPECT_EQ(scale.value(), 2048);
}

TEST(LossScale, StaysBetweenItsEnds) {
  LossScale scale(4, 1);
  for (int i = 0; i < 5; ++i) scale.finish_step(false);
  EXPECT_EQ(scale.value(), 1);
  for (int i = 0; i < 100; ++i) scale.finish_step(true);
  EXPECT_EQ(scale.value(), 1 << 24);
  LossScale large(1e30, 1);  // beyond the end as asked for: it does not grow, and does not fall without an overflow
  large.finish_step(true);
  EXPECT_EQ(large.value(), 1e30);
}

TEST(LossScale, OneIsNone) {
  LossScale none(1, 1), constant(8, 0);
  for (int i = 0; i < 10; ++i) {
    none.finish_step(i % 2 == 0);
    constant.finish_step(true);
  }
  EXPECT_EQ(none.value(), 1);
  EXPECT_EQ(constant.value(), 8);
}

TEST(LossScale, StateComesBack) {
  LossScale scale(1024, 3);
  scale.finish_step(false);
  scale.finish_step(true);
  LossScale other(1024, 3);
  other.restore(scale.state());
  EXPECT_EQ(other.state(), (LossScaleState{512, 1}));
  for (LossScale* each : {&scale, &other}) {
    each->finish_step(true);
    each->finish_step(true);
    EXPECT_EQ(each->value(), 1024);
  }
}

// A power of two that moves changes no bit of a training in which nothing overflows.
TEST(LossScaleTraining, GrowsWithoutATrace) {
  const std::string base = "--layers 1 --heads 2 --width 16 --seq 16 --steps 8 --dp 2 --zero 2 --accum 2 ";
  const test::Trained none = test::train_quietly(base),
                      growing = test::train_quietly(base + "--loss-scale 1024 --loss-scale-growth 2");
  EXPECT_EQ(growing.scale, (std::vector<double>{1024, 1024, 2048, 2048, 4096, 4096, 8192, 8192}));
  EXPECT_EQ(growing.norm, none.norm);
  EXPECT_EQ(growing.loss, none.loss);
}

// A tensor of the single rank's dump.
std::vector<double> values(const test::Trained& trained, int64_t step, const std::string& name) {
  const auto folder = lockstep::dump::open_folder(*trained.dump);
  if (!folder) return {};
  const auto opened = lockstep::dump::open_step(*folder, step);
  if (!opened || opened->tensors.count(name) == 0) return {};
  const lockstep::dump::StoredTensor& stored = *opened->tensors.at(name).front().stored;
  std::vector<double> all(static_cast<size_t>(stored.elements()));
  lockstep::dump::to_double(stored.dtype, stored.data, all.size(), all.data());
  return all;
}

// A skipped step leaves no trace: parameters and moments stay, and AdamW's first update is as large as if it were the
// first step, whose corrected moments are the gradient and its square: the learning rate in every element.
TEST(LossScaleTraining, AStepThatOverflowsIsAsIfItHadNotBeen) {
  const test::Trained trained =
      test::train("--layers 1 --heads 2 --width 16 --seq 16 --steps 24 --lr 0.01 --loss-scale 3e38 --clip 0");
  const std::string bias = "param/transformer.ln_f.bias", moment = "adam_m/transformer.ln_f.bias";
  const auto first = std::find_if(trained.norm.begin(), trained.norm.end(), [](double x) { return std::isfinite(x); });
  const int64_t steps = first - trained.norm.begin();  // skipped
  ASSERT_GT(steps, 0);
  ASSERT_LT(steps, 24);
  for (int64_t n = 0; n < steps; ++n) EXPECT_EQ(trained.scale[static_cast<size_t>(n)], std::ldexp(3e38, -int(n)));
  EXPECT_EQ(values(trained, steps, bias), std::vector<double>(16, 0));
  EXPECT_EQ(values(trained, steps, moment), std::vector<double>(16, 0));
  for (const double x : values(trained, steps + 1, bias)) EXPECT_NEAR(std::fabs(x), 0.01, 1e-4);
  EXPECT_EQ(values(trained, steps + 1, bias).size(), 16u);
}

}  // namespace
}  // namespace train
