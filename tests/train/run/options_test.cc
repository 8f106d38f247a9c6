// SPDX-License-Identifier: MIT
//
// The command line: what follows from what, and what is refused with which equation.

#include "reference/train/run/options.h"

#include <gtest/gtest.h>

#include "tests/train/run/command_line.h"

namespace train {
namespace {

Options parse(const std::string& line, int world) {
  Options options = test::parse_line(line);
  complete_options(options, world);
  return options;
}

std::string refusal(const std::string& line, int world) {
  try {
    parse(line, world);
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return "";
}

TEST(TrainOptions, DataParallelRanksAreWhatIsLeft) {
  EXPECT_EQ(parse("", 4).shape.dp, 4);
  EXPECT_EQ(parse("--tp 2", 4).shape.dp, 2);
  EXPECT_EQ(parse("--dp 2 --tp 2", 4).shape.dp, 2);
}

TEST(TrainOptions, AnyTwoOfTheBatchGiveTheThird) {
  const auto batch = [](const std::string& line) {
    const Options o = parse(line, 2);
    return std::vector<int64_t>{o.micro_batch, o.accum, o.global_batch};
  };
  using Batch = std::vector<int64_t>;
  EXPECT_EQ(batch(""), (Batch{8, 1, 16}));
  EXPECT_EQ(batch("--global-batch 24"), (Batch{12, 1, 24}));
  EXPECT_EQ(batch("--global-batch 24 --accum 3"), (Batch{4, 3, 24}));
  EXPECT_EQ(batch("--global-batch 24 --micro-batch 2"), (Batch{2, 6, 24}));
  EXPECT_EQ(batch("--micro-batch 2 --accum 5"), (Batch{2, 5, 20}));
  EXPECT_EQ(batch("--micro-batch 2 --accum 5 --global-batch 20"), (Batch{2, 5, 20}));
}

TEST(TrainOptions, ImpossibleLayoutsAreRefusedWithTheEquation) {
  const struct {
    const char* line;
    int world;
    const char* says;
  } cases[] = {
      {"--tp 3", 4, "ranks % (pp x cp x tp) = 4 % (1 x 1 x 3) is not 0"},
      {"--dp 3 --tp 2", 4, "dp x pp x cp x tp = 3 x 1 x 1 x 2 = 6, but there are 4 ranks"},
      {"--global-batch 7", 2, "global batch = micro-batch x accum x dp: 7 is not a multiple of accum x dp = 2"},
      {"--global-batch 8 --micro-batch 3", 1, "8 is not a multiple of micro-batch x dp = 3"},
      {"--global-batch 8 --micro-batch 2 --accum 2", 1, "8 is not 2 x 2 x 1 = 4"},
      {"--heads 3", 1, "width % heads = 128 % 3 is not 0"},
      {"--heads 4 --kv-heads 3", 1, "heads % kv-heads = 4 % 3"},
      {"--tp 8 --heads 4", 8, "heads % tp = 4 % 8"},
      {"--pp 3", 3, "layers % (pp x virtual-stages) = 4 % (3 x 1)"},
      {"--schedule zero-bubble", 2, "fills the bubble of a pipeline, and pp = 1 has none"},
      {"--schedule interleaved --virtual-stages 2 --accum 2", 1, "needs several stages, and pp = 1"},
      {"--cp 4 --seq 16 --cp-algo ulysses --heads 4 --kv-heads 2", 4, "(kv-heads / tp) % cp"},
      {"--pp 2 --virtual-stages 2", 2, "needs --schedule interleaved"},
      {"--pp 2 --schedule interleaved --accum 3", 2, "accum % pp = 3 % 2"},
      {"--cp 4 --seq 12", 4, "seq % (2 x cp) (zigzag chunks) = 12 % 8"},
      {"--ep 2", 2, "the model has no experts"},
      {"--ep 4 --experts 8", 2, "(dp x cp x tp) % ep = (2 x 1 x 1) % 4"},
      {"--sp", 2, "tp = 1"},
      {"--fsdp hybrid --hybrid-shard 3", 4, "(dp x cp) % hybrid-shard = (4 x 1) % 3"},
      {"--order tp-cp-dp", 1, "names each of tp, cp, dp and pp once"},
      {"--wrap size:x", 1, "expected block, layer, none, or size:N"},
      {"--zero 1 --fsdp full", 2, "excludes"},
      {"--zero 4", 2, "see --help"},
      {"--compress bf16 --zero 1", 2, "plain data parallelism"},
      {"--nonsense", 1, "see --help"},
      {"--steps 0", 1, "see --help"},
  };
  for (const auto& c : cases)
    EXPECT_NE(refusal(c.line, c.world).find(c.says), std::string::npos) << c.line << ": " << refusal(c.line, c.world);
}

TEST(TrainOptions, NumbersNamesAndRepeatedFlagsAreRefusedInOneSentence) {
  const std::pair<const char*, const char*> cases[] = {
      {"--lr -1", "--lr is -1, but must be a finite number of at least 0"},
      {"--lr nan", "--lr is nan, but must be a finite number of at least 0"},
      {"--lr 1e999", "--lr is 1e999, but must be a finite number of at least 0"},
      {"--lr 1x", "--lr is 1x, but must be a finite number of at least 0"},
      {"--clip inf", "--clip is inf, but must be a finite number of at least 0"},
      {"--beta1 1", "--beta1 is 1, but must be a number of at least 0 and below 1"},
      {"--beta2 -0.1", "--beta2 is -0.1, but must be a number of at least 0 and below 1"},
      {"--dropout 1", "--dropout is 1, but must be a number of at least 0 and below 1"},
      {"--mask-fraction nan", "--mask-fraction is nan, but must be a number of at least 0 and below 1"},
      {"--topk-fraction 0", "--topk-fraction is 0, but must be a number above 0 and at most 1"},
      {"--loss-scale 0", "--loss-scale is 0, but must be a finite number above 0"},
      {"--bucket-mb inf", "--bucket-mb is inf, but must be a number above 0 and at most 1e6"},
      {"--capacity 1e300", "--capacity is 1e300, but must be a number from 0 to 1e6"},
      {"--fake-compute-us 1,nan,1", "--fake-compute-us is nan, but must be a number from 0 to 1e9"},
      {"--fake-compute-us 1,1,2e9", "--fake-compute-us is 2e9, but must be a number from 0 to 1e9"},
      {"--seed -1", "--seed is -1, but must be a whole number from 0 to 18446744073709551615"},
      {"--seed 18446744073709551616",
       "--seed is 18446744073709551616, but must be a whole number from 0 to 18446744073709551615"},
      {"--dtype x", "--dtype is x, but must be fp64, fp32 or bf16"},
      {"--dtype 0", "--dtype is 0, but must be fp64, fp32 or bf16"},
      {"--fsdp 1", "--fsdp is 1, but must be full, grad-op or hybrid"},
      {"--compress zip", "--compress is zip, but must be none, bf16 or topk"},
      {"--optimizer adam", "--optimizer is adam, but must be adamw or sgd"},
      {"--lr 1 --lr 2", "--lr is given twice"},
      {"--lr=1 --lr 2", "--lr is given twice"},
      {"--steps 1 --steps 1", "--steps is given twice"},
      {"--dump= --quiet", "--dump= has no value"},
      {"--fake-compute-us 1,1,1 --fake-compute-us 1,1,1", "--fake-compute-us is given twice"},
  };
  for (const auto& [line, says] : cases) EXPECT_EQ(refusal(line, 1), says) << line;
}

TEST(TrainOptions, WhatIsAllowedIsRead) {
  const Options o = parse(
      "--lr 0 --beta1 0 --dropout .25 --topk-fraction 1 --seed 18446744073709551615 --dtype bf16 --optimizer sgd "
      "--fake-compute-us 1,2.5,1e9 --freeze a* --freeze=b* --quiet --quiet",
      1);
  EXPECT_EQ(o.lr, 0);
  EXPECT_EQ(o.beta1, 0);
  EXPECT_EQ(o.dropout, 0.25);
  EXPECT_EQ(o.topk_fraction, 1);
  EXPECT_EQ(o.seed, UINT64_MAX);
  EXPECT_EQ(o.dtype, Dtype::bf16);
  EXPECT_EQ(o.optimizer, "sgd");
  EXPECT_EQ(o.fake_compute_us, (std::vector<double>{1, 2.5, 1e9}));
  EXPECT_EQ(o.freeze, (std::vector<std::string>{"a*", "b*"}));
}

TEST(TrainOptions, LegalLayoutsAreNot) {
  for (const char* line : {"--tp 2 --sp", "--pp 4", "--cp 2 --tp 2", "--zero 3 --accum 2", "--fsdp hybrid",
                           "--pp 2 --schedule interleaved --virtual-stages 2 --accum 2", "--ep 2 --experts 4"})
    EXPECT_EQ(refusal(line, 4), "") << line;
}

}  // namespace
}  // namespace train
