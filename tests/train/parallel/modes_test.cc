// SPDX-License-Identifier: MIT
//
// Every parallel mode, alone and with others, against one rank: loss, every gradient and every parameter after some
// steps, with dropout, masks, packed documents and vocabulary padding.

#include "tests/train/parallel/job.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

[[maybe_unused]] const bool kDevices = [] {
  set_devices(64);
  return true;
}();

TEST(Modes, DataParallel) {
  for (const int dp : {2, 4}) expect_equal("tied", kTied, layout_of(dp, 1, 1, 1));
}

TEST(Modes, TensorParallel) {
  for (const int tp : {2, 4})
    for (const bool sequence : {false, true}) {
      Layout layout = layout_of(1, 1, 1, tp);
      layout.sequence = sequence;
      expect_equal("tied", kTied, layout);
      expect_equal("rotary", kRotary, layout);  // with tp 4 two ranks share each key/value head
    }
}

TEST(Modes, ContextParallel) {
  for (const int cp : {2, 4})
    for (const ContextWay way : {ContextWay::ring, ContextWay::all_gather, ContextWay::ulysses}) {
      Layout layout = layout_of(1, 1, cp, 1);
      layout.context = way;
      expect_equal("tied", kTied, layout);
      if (way != ContextWay::ulysses || cp == 2) expect_equal("rotary", kRotary, layout);
    }
}

TEST(Modes, Pipeline) {
  for (const int pp : {2, 4})
    for (const char* schedule : {"gpipe", "1f1b", "zero-bubble", "zero-bubble-2"}) {
      Layout layout = layout_of(1, pp, 1, 1);
      layout.schedule = schedule;
      layout.micro_batches = 4;
      expect_equal("tied", kTied, layout);
      expect_equal("rotary", kRotary, layout);
    }
  Layout layout = layout_of(1, 2, 1, 1);
  layout.schedule = "interleaved";
  layout.chunks = 2;
  layout.micro_batches = 4;
  expect_equal("tied", kTied, layout);
}

TEST(Modes, EveryScheduleGivesTheSameBits) {
  Layout layout = layout_of(1, 2, 1, 1);
  layout.micro_batches = 4;
  layout.schedule = "gpipe";
  const Outcome first = run_job(kTied, layout);
  for (const char* schedule : {"1f1b", "interleaved", "zero-bubble", "zero-bubble-2"}) {
    layout.schedule = schedule;
    layout.chunks = layout.schedule == "interleaved" ? 2 : 1;
    const Outcome other = run_job(kTied, layout);
    EXPECT_EQ(other.losses, first.losses) << schedule;
    EXPECT_TRUE(other.gradients == first.gradients) << schedule;
    EXPECT_TRUE(other.parameters == first.parameters) << schedule;
  }
}

TEST(Modes, ExpertParallel) {
  struct Case {
    Layout layout;
    int ep;
    bool sequence;
  };
  for (const Case& c : {Case{layout_of(2, 1, 1, 1), 1, false}, Case{layout_of(2, 1, 1, 1), 2, false},
                        Case{layout_of(4, 1, 1, 1), 2, false}, Case{layout_of(4, 1, 1, 1), 4, false},
                        Case{layout_of(1, 1, 2, 1), 2, false}, Case{layout_of(1, 1, 1, 2), 1, true},
                        Case{layout_of(1, 1, 1, 2), 2, true}, Case{layout_of(2, 2, 1, 1), 2, false},
                        Case{layout_of(2, 1, 2, 2), 4, true}}) {
    Layout layout = c.layout;
    layout.shape.ep = c.ep;
    layout.sequence = c.sequence;
    expect_equal("experts", kExperts, layout);
    expect_equal("capacity", kCapacity, layout);
    if (c.ep > 1) {
      layout.shard = "zero1";
      expect_equal("experts", kExperts, layout);
      layout.shard = "full";
      expect_equal("experts", kExperts, layout);
    }
  }
}

TEST(Modes, SixtyFourRanks) {
  Job job = kTied;
  job.steps = 1;
  job.config.heads = 8;
  Layout layout = layout_of(2, 4, 1, 8);
  layout.micro_batches = 4;
  for (const bool sequence : {false, true}) {
    layout.sequence = sequence;
    layout.schedule = sequence ? "zero-bubble" : "1f1b";
    layout.shard = sequence ? "zero1" : "none";
    expect_equal("wide", job, layout);
  }
  job.config.experts = 4;
  layout.shape.ep = 2;
  expect_equal("wide experts", job, layout);
}

TEST(Modes, AnOtherSeedIsSeen) {
  Job job = kTied;
  job.config.seed += 1;
  EXPECT_GT(compare(run_job(job, layout_of(1, 1, 1, 2)), one_rank("tied", kTied)).distance, 1e-3);
}

}  // namespace
}  // namespace train
