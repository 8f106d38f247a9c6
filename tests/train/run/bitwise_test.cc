// SPDX-License-Identifier: MIT
//
// What must be equal bit for bit, in single precision, where nothing hides: the same run twice, any number of threads,
// and, with reductions in the order of ranks, all ways to shard over data parallelism with each other and with
// accumulation on one rank.

#include <gtest/gtest.h>
#include <stdlib.h>

#include "reference/train/kernels/kernels.h"
#include "tests/train/run/harness.h"

namespace train::test {
namespace {

[[maybe_unused]] const bool kOrder = [] {
  setenv("LOCKSTEP_HOST_ORDER", "rank", 1);
  return true;
}();

const std::string kBase =
    "--layers 2 --heads 2 --width 32 --seq 32 --steps 3 --mask-fraction 0.4 --dropout 0.1 --clip 0.5 --lr 0.01 "
    "--eps 1e-4 --dtype fp32 --micro-batch 2 ";

TEST(Bitwise, TheSameRunTwice) {
  for (const char* layout : {"--dp 1 --accum 2", "--dp 4 --zero 2 --accum 2", "--dp 2 --tp 2 --sp --fsdp full"})
    EXPECT_EQ(first_unequal(train(kBase + layout), train(kBase + layout)), "") << layout;
}

TEST(Bitwise, AnyNumberOfThreads) {
  const std::string wide = "--layers 2 --heads 2 --width 64 --seq 64 --steps 3 --dropout 0.1 --dp 2 --zero 1";
  const Trained one = train(wide);
  set_threads(2);
  const Trained two = train(wide);
  set_threads(1);
  EXPECT_EQ(first_unequal(one, two), "");
}

// What is beside what decides no bit.
TEST(Bitwise, WithoutOverlap) {
  for (const char* layout : {"--tp 2 --accum 2", "--tp 2 --sp --dp 2 --fsdp full --prefetch both", "--cp 2 --zero 2",
                             "--pp 2 --tp 2 --accum 2 --zero 1"})
    EXPECT_EQ(first_unequal(train(kBase + layout), train(kBase + layout + std::string(" --no-overlap"))), "") << layout;
}

void expect_all_equal(const std::string& base, const std::vector<std::string>& layouts) {
  const Trained first = train(base + layouts.front());
  for (size_t i = 1; i < layouts.size(); ++i)
    EXPECT_EQ(first_unequal(first, train(base + layouts[i])), "") << layouts[i] << " and " << layouts.front();
}

TEST(Bitwise, OneMicroBatchHoweverItIsSharded) {
  for (const char* dp : {"--dp 2 ", "--dp 4 "})
    expect_all_equal(kBase + dp, {"--zero 0", "--zero 1 --bucket-mb 0.01", "--zero 2 --bucket-mb 0.02", "--zero 3",
                                  "--fsdp full --wrap layer --prefetch both", "--fsdp full --wrap none",
                                  "--fsdp grad-op --no-overlap", "--zero 0 --no-overlap"});
}

// Values are rounded from masters that are sharded otherwise.
TEST(Bitwise, Bf16WithMasterWeightsToo) {
  std::string base = kBase + "--dp 4 --loss-scale 1024 ";
  base.replace(base.find("fp32"), 4, "bf16");
  expect_all_equal(base, {"--zero 0", "--zero 1 --bucket-mb 0.01", "--zero 2 --bucket-mb 0.02",
                          "--zero 3 --prefetch both", "--fsdp full --wrap layer", "--fsdp grad-op"});
  expect_all_equal(base + "--accum 2 ", {"--zero 1", "--fsdp full --no-sync"});
}

TEST(Bitwise, SeveralMicroBatches) {
  expect_all_equal(kBase + "--dp 2 --accum 3 ", {"--zero 0", "--zero 1 --bucket-mb 0.01"});
  expect_all_equal(kBase + "--dp 2 --accum 3 ", {"--zero 2 --bucket-mb 0.02", "--zero 3", "--fsdp full --prefetch none",
                                                 "--fsdp grad-op --wrap layer"});
}

// Under no_sync the order is that of whole gradients, however parameters are sharded.
TEST(Bitwise, SeveralMicroBatchesWithoutSynchronisation) {
  expect_all_equal(kBase + "--dp 4 --accum 3 ",
                   {"--zero 1", "--zero 2 --no-sync", "--zero 3 --no-sync", "--fsdp full --no-sync --prefetch both",
                    "--fsdp grad-op --no-sync --wrap layer --no-overlap", "--fsdp full --no-sync --wrap none"});
  EXPECT_NE(first_unequal(train(kBase + "--dp 2 --accum 2 --fsdp full"),
                          train(kBase + "--dp 2 --accum 2 --fsdp full --no-sync")),
            "");  // control
}

TEST(Bitwise, RanksAreAccumulation) {
  const Trained alone = train(kBase + "--dp 1 --accum 4");
  EXPECT_EQ(first_unequal(alone, train(kBase + "--dp 4")), "");
  EXPECT_EQ(first_unequal(alone, train(kBase + "--dp 4 --fsdp full")), "");
}

TEST(Bitwise, ControlThatOrdersOfSummationShow) {
  EXPECT_NE(first_unequal(train(kBase + "--dp 2 --accum 2"), train(kBase + "--dp 2 --accum 2 --zero 2")), "");
}

}  // namespace
}  // namespace train::test
