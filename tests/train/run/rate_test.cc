// SPDX-License-Identifier: MIT
//
// The learning rate of each step: the ends of its pieces, and what lies between them.

#include <gtest/gtest.h>

#include <cmath>

#include "reference/train/run/optimizer.h"

namespace train {
namespace {

Options options(int64_t warmup, int64_t decay_steps) {
  Options o;
  o.lr = 0.5;
  o.min_lr = 0.1;
  o.warmup = warmup;
  o.decay_steps = decay_steps;
  return o;
}

TEST(Rate, IsConstantWhereNothingElseIsAsked) {
  for (const int64_t step : {1, 7, 1000000}) EXPECT_EQ(rate_at(options(0, 0), step), 0.5);
}

TEST(Rate, RisesInEqualStepsToTheFullRate) {
  const Options o = options(4, 0);
  const double rates[] = {0.125, 0.25, 0.375, 0.5, 0.5};
  for (int64_t step = 1; step <= 5; ++step) EXPECT_DOUBLE_EQ(rate_at(o, step), rates[step - 1]);
}

TEST(Rate, FollowsACosineToItsEnd) {
  const Options o = options(4, 12);
  EXPECT_DOUBLE_EQ(rate_at(o, 4), 0.5);
  EXPECT_DOUBLE_EQ(rate_at(o, 6), 0.1 + 0.4 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_DOUBLE_EQ(rate_at(o, 8), 0.3);
  EXPECT_DOUBLE_EQ(rate_at(o, 10), 0.1 + 0.4 * (1 - std::sqrt(0.5)) / 2);
  for (const int64_t step : {12, 13, 1000}) EXPECT_EQ(rate_at(o, step), 0.1);
  for (int64_t step = 5; step <= 12; ++step) EXPECT_LT(rate_at(o, step), rate_at(o, step - 1));
}

}  // namespace
}  // namespace train
