// SPDX-License-Identifier: MIT
//
// It learns: 500 steps on the bundled text end well below the loss of who knows only how often each byte occurs.

#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>

#include "reference/train/run/text.h"
#include "tests/train/run/harness.h"

namespace train::test {
namespace {

TEST(Learning, FiveHundredStepsOnTheBundledText) {
  const Text text(bundled_text(), 64, 256, false);
  const Trained trained = train_quietly(
      "--layers 2 --heads 4 --width 64 --seq 64 --dp 2 --micro-batch 4 --steps 500 --lr 0.003 --warmup 20 "
      "--decay-steps 500 --zero 1");
  const double last = std::accumulate(trained.loss.end() - 20, trained.loss.end(), 0.0) / 20;
  std::printf("loss of the first step %.3f, mean of the last 20 steps %.3f, unigram entropy %.3f nats\n",
              trained.loss.front(), last, text.unigram_entropy());
  EXPECT_GT(trained.loss.front(), 5.3);  // about ln 256: nothing is known yet
  EXPECT_GT(text.samples() * 64, 300'000);
  EXPECT_LT(last, text.unigram_entropy() - 0.6);
}

}  // namespace
}  // namespace train::test
