// SPDX-License-Identifier: MIT
//
// The command line: what follows from what, and what is refused with which equation.

#include "reference/train/run/options.h"

#include <gtest/gtest.h>

#include "reference/train/run/memory_needed.h"
#include "reference/train/run/notes.h"
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

TEST(TrainOptions, HybridShardsOverHalfOfTheRanksWhereThatIsMoreThanOne) {
  const auto shard = [](const std::string& line, int world) {
    return parse("--fsdp hybrid " + line, world).hybrid_shard;
  };
  EXPECT_EQ(shard("", 8), 4);
  EXPECT_EQ(shard("", 2), 2);
  EXPECT_EQ(shard("", 3), 3);
  EXPECT_EQ(shard("--dp 1 --cp 4", 4), 4);
  EXPECT_EQ(shard("--hybrid-shard 1", 2), 1);  // as is asked for
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
      {"--width 12 --heads 4 --pos rotary", 1, "(width / heads) % 2 (rotary positions turn pairs) = 3 % 2 is not 0"},
      {"--tp 8 --heads 4", 8, "heads % tp = 4 % 8"},
      {"--tp 4 --heads 12 --width 24 --kv-heads 3", 4, "tp % kv-heads (or kv-heads % tp) = 4 % 3 is not 0"},
      {"--tp 2 --sp --seq 15 --micro-batch 1", 2, "(micro-batch x seq / cp) % tp (--sp) = 15 % 2 is not 0"},
      {"--experts 6 --ep 4", 4, "experts % ep = 6 % 4 is not 0"},
      {"--experts 4 --tp 2", 2, "experts with tp = 2 need --sp: each tensor-parallel rank must have tokens of its own"},
      {"--experts 4 --top-k 5", 1, "top-k = 5 is more than experts = 4"},
      {"--share-layers --layers 3", 1, "layers % 2 (--share-layers uses each layer twice) = 3 % 2 is not 0"},
      {"--share-layers --pp 2", 2, "--share-layers needs pp = 1: a layer used twice would be on two stages"},
      {"--virtual-stages 2 --layers 6 --pp 2 --schedule interleaved", 2,
       "layers % (pp x virtual-stages) = 6 % (2 x 2) is not 0"},
      {"--fsdp hybrid --experts 4 --ep 2", 4,
       "--fsdp hybrid divides dp x cp, over which experts with ep = 2 are not summed"},
      {"--hybrid-shard 2 --fsdp full", 4, "--hybrid-shard goes with --fsdp hybrid"},
      {"--compress bf16 --dtype fp64", 2, "--compress bf16 would round fp64 gradients to 8 bits"},
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
      {"--wrap size:0", 1,
       "--wrap is \"size:0\"; expected block, layer, none, or size:N with N parameters, at least 1"},
      {"--zero 1 --fsdp full", 2, "excludes"},
      {"--zero 4", 2, "--zero is 4, but must be 0, 1, 2 or 3"},
      {"--compress bf16 --zero 1", 2, "plain data parallelism"},
      {"--nonsense", 1, "see --help"},
      {"--dp 1024 --pp 1024", 1, "dp x pp x cp x tp = 1024 x 1024 x 1 x 1 = 1048576 ranks, but there can be at most"},
      {"", 20000, "there are 20000 ranks, but there can be at most 16384"},
      {"--micro-batch 1073741824 --accum 1073741824", 1,
       "global batch = micro-batch x accum x dp = 1073741824 x 1073741824 x 1 is more than 1099511627776 sequences"},
      {"--warmup 10 --decay-steps 10", 1, "decay-steps = 10 is not after warmup = 10"},
      {"--print-schedule --accum 5000", 1, "draws at most 4096 micro-batches, and accum = 5000"},
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
      {"--steps 0", "--steps is 0, but must be a whole number from 1 to 1073741824"},
      {"--steps 1.5", "--steps is 1.5, but must be a whole number from 1 to 1073741824"},
      {"--layers 1000000000000", "--layers is 1000000000000, but must be a whole number from 1 to 1048576"},
      {"--seq 1099511627776", "--seq is 1099511627776, but must be a whole number from 1 to 1048576"},
      {"--width -8", "--width is -8, but must be a whole number from 1 to 1048576"},
      {"--heads 4x", "--heads is 4x, but must be a whole number from 1 to 1048576"},
      {"--ranks 1025", "--ranks is 1025, but must be a whole number from 1 to 1024"},
      {"--threads 0", "--threads is 0, but must be a whole number from 1 to 256"},
      {"--dp 99999999999999999999", "--dp is 99999999999999999999, but must be a whole number from 1 to 1024"},
      {"--tp two", "--tp is two, but must be a whole number from 1 to 1024"},
      {"--virtual-stages 65", "--virtual-stages is 65, but must be a whole number from 1 to 64"},
      {"--eval-batches 0", "--eval-batches is 0, but must be a whole number from 1 to 1048576"},
      {"--loss-scale-growth -1", "--loss-scale-growth is -1, but must be a whole number from 0 to 1073741824"},
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

std::vector<std::string> notes(const std::string& line, int world, Launch launch = {}) {
  launch.world = world;
  return notes_on(parse(line, world), launch);
}

TEST(TrainOptions, WhatHasNoEffectIsTold) {
  const struct {
    const char* line;
    int world;
    const char* says;
  } cases[] = {
      {"--zero 1", 1, "--zero has no effect: it shards over dp x cp ranks, and there is one"},
      {"--fsdp full --tp 2", 2, "--fsdp has no effect: it shards over dp x cp ranks, and there is one"},
      {"--bucket-mb 1", 1, "--bucket-mb has no effect: gradients are summed over dp x cp ranks, and there is one"},
      {"--compress topk", 1, "--compress has no effect: gradients are summed over dp x cp ranks, and there is one"},
      {"--no-overlap --pp 2", 2,
       "--no-overlap has no effect: it is about what dp, cp, tp and ep ranks exchange, and each of these is 1"},
      {"--no-overlap --fsdp full --prefetch both", 2,
       "--prefetch has no effect: with --no-overlap nothing is gathered ahead of its use"},
      {"--bucket-mb 1 --fsdp full", 2, "--bucket-mb has no effect: ZeRO-3 and FSDP reduce units, not buckets (--wrap)"},
      {"--wrap layer", 2, "--wrap has no effect: it makes units of FSDP: give --fsdp"},
      {"--wrap layer --zero 3", 2, "--wrap has no effect: it makes units of FSDP: give --fsdp"},
      {"--prefetch both --zero 2", 2, "--prefetch has no effect: only ZeRO-3 and FSDP gather parameters"},
      {"--no-sync --fsdp full", 2, "--no-sync has no effect: a step has one micro-batch (--accum)"},
      {"--no-sync --zero 1 --accum 2", 2,
       "--no-sync has no effect: plain data parallelism and ZeRO-1 reduce in the last micro-batch anyhow"},
      {"--topk-fraction 0.1", 2, "--topk-fraction has no effect: it goes with --compress topk"},
      {"--schedule gpipe", 2, "--schedule has no effect: pp = 1 has nothing to schedule"},
      {"--pp 4 --schedule zero-bubble-2 --accum 6", 4,
       "--schedule zero-bubble-2 fills its bubble from accum = 7 micro-batches on (pp = 4), and accum = 6: stages idle "
       "for longer than its formula says"},
      {"--pp 4 --schedule zero-bubble --accum 3", 4,
       "--schedule zero-bubble fills its bubble from accum = 4 micro-batches on (pp = 4), and accum = 3: stages idle "
       "for longer than its formula says"},
      {"--cp-algo ulysses", 2, "--cp-algo has no effect: cp = 1 splits no sequence"},
      {"--order tp-dp-cp-pp", 2, "--order has no effect: fewer than two of tp, cp, dp and pp have several ranks"},
      {"--top-k 1", 1, "--top-k has no effect: the model has no experts (--experts)"},
      {"--beta1 0.8 --optimizer sgd", 1, "--beta1 has no effect: it goes with --optimizer adamw"},
      {"--momentum 0.8", 1, "--momentum has no effect: it goes with --optimizer sgd"},
      {"--min-lr 0", 1, "--min-lr has no effect: the rate does not fall without --decay-steps"},
      {"--loss-scale-growth 3", 1,
       "--loss-scale-growth has no effect: a loss scale of 1 or less is constant (--loss-scale)"},
      {"--eval-batches 2", 1, "--eval-batches has no effect: there is no evaluation without --eval-every"},
      {"--eval-every 200", 1, "--eval-every has no effect: it is more than --steps"},
      {"--dump-every 2", 1, "--dump-every has no effect: nothing is dumped without --dump"},
      {"--id-file x", 2,
       "--id-file has no effect: the ranks are threads of this process, which need not look for each other"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(notes(c.line, c.world), std::vector<std::string>{c.says}) << c.line << ' ' << c.world;
  Launch process;
  process.as = Launch::As::environment;
  EXPECT_TRUE(notes("--id-file x", 2, process).empty());
  for (const char* line :
       {"--zero 1 --bucket-mb 1 --no-overlap", "--fsdp full --wrap layer --prefetch both --accum 2 --no-sync",
        "--compress topk --topk-fraction 0.1", "--pp 2 --schedule gpipe --order pp-tp-cp-dp", "--tp 4 --no-overlap",
        "--pp 4 --schedule zero-bubble --accum 4", "--pp 4 --schedule zero-bubble-2 --accum 7",
        "--cp 2 --cp-algo ulysses --zero 2", "--experts 4 --top-k 1 --capacity 2 --ep 2 --zero 1",
        "--warmup 2 --decay-steps 9 --min-lr 0 --loss-scale 2 --loss-scale-growth 3", "--zero 3 --prefetch none"})
    EXPECT_TRUE(notes(line, 4).empty()) << line << ": " << notes(line, 4).front();
}

// The sizes' formulas: what a GPT-2 of 124 million parameters is known to take.
TEST(TrainOptions, LeastMemoryFollowsTheFormulas) {
  const std::string gpt2 = "--layers 12 --heads 12 --width 768 --vocab 50257 --seq 1024 --micro-batch 2 ";
  const auto least = [&](const std::string& more, int world) { return least_memory(parse(gpt2 + more, world), true); };
  const Needed one = least("", 1);
  EXPECT_NEAR(one.parameters, 124.4e6, 0.2e6);
  EXPECT_NEAR(one.states, 16 * one.parameters, 1);
  const double layer = 16 * 768. + 12 + 4, ends = 2 * 768. + 50257 + 5;  // values and statistics of a token
  EXPECT_NEAR(one.activations, 2048 * (12 * layer + ends) * 4, 1);
  EXPECT_NEAR(least("--zero 1", 4).states, (4 + 4 + 2) * one.parameters, 1);
  EXPECT_NEAR(least("--zero 2", 4).states, (4 + 1 + 2) * one.parameters, 1);
  EXPECT_NEAR(least("--zero 3", 4).states, 4 * one.parameters, 1);
  EXPECT_NEAR(least("--fsdp full --accum 2 --no-sync", 4).states, (1 + 4 + 2) * one.parameters, 1);
  EXPECT_NEAR(least("--dtype bf16", 1).states, (2 + 4 + 12) * one.parameters, 1);
  EXPECT_NEAR(least("--optimizer sgd --dtype fp64", 1).states, 24 * one.parameters, 1);
  EXPECT_LT(least("--tp 4", 4).states, one.states / 3);
  EXPECT_LT(least("--pp 4", 4).states, one.states / 2);
}

TEST(TrainOptions, LegalLayoutsAreNot) {
  for (const char* line : {"--tp 2 --sp", "--pp 4", "--cp 2 --tp 2", "--zero 3 --accum 2", "--fsdp hybrid",
                           "--pp 2 --schedule interleaved --virtual-stages 2 --accum 2", "--ep 2 --experts 4"})
    EXPECT_EQ(refusal(line, 4), "") << line;
}

}  // namespace
}  // namespace train
