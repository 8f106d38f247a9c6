// SPDX-License-Identifier: MIT
//
// How many calls of which size tensor, sequence, context, pipeline and expert parallelism make in a step, alone and
// together, read from the shim's trace of the program, against the formulas (formulas.cc). Every run must be called
// healthy.

#include <gtest/gtest.h>

#include "tests/train/run/formulas.h"

namespace train::test {
namespace {

Work work(const Shape& shape) {
  Work w;
  w.config.layers = w.config.heads = 4;
  w.config.width = w.config.seq = 16;
  w.shape = shape;
  return w;
}
Work with_experts(const Shape& shape, int64_t experts) {
  Work w = work(shape);
  w.config.experts = w.config.top_k = experts;
  return w;
}

// The formulas once by hand, so that they are not only compared with themselves: 4 layers, width 16, 4 sequences of 16
// tokens, 2 micro-batches.
TEST(CallsOfModes, TensorParallelByHand) {
  const Calls expected = {{{"tp", "AllReduce", "float32"}, {2 * (9 + 9 + 3), 2 * (18 * 1024 + 3 * 64)}},
                          {{"model", "AllGather", "float64"}, {1, 2}}};
  EXPECT_EQ(calls_of_all(work({.tp = 2}).words()), expected);
  EXPECT_EQ(formula(work({.tp = 2}), 0), expected);
}

TEST(CallsOfModes, TensorAndSequenceParallel) {
  for (const int tp : {2, 4})
    for (const bool sequence : {false, true}) {
      Work w = work({.tp = tp});
      w.sequence = sequence;
      expect_calls(w);
    }
}

TEST(CallsOfModes, KeyValueHeadsSplitOrShared) {
  for (const int64_t keys : {2, 1}) {
    Work w = work({.tp = 4});
    w.config.kv_heads = keys;
    w.sequence = keys == 1;
    expect_calls(w);
    w = work({.cp = 2, .tp = 2});
    w.config.kv_heads = keys;
    expect_calls(w);
  }
  Work w = work({.cp = 2, .tp = 1});
  w.config.kv_heads = 2;
  w.context = "ulysses";
  expect_calls(w);
}

TEST(CallsOfModes, ContextParallel) {
  for (const int cp : {2, 4})
    for (const char* way : {"ring", "allgather", "ulysses"}) {
      Work w = work({.cp = cp});
      w.context = way;
      expect_calls(w);
    }
}

// Gradients of keys and values are summed in fp32 on their way, whatever they are made in.
TEST(CallsOfModes, ContextParallelSumsGradientsOfBf16InFp32) {
  const int64_t c = 4, pair = 2 * 4 * 4 * 16, layers = 2 * 4;  // of two micro-batches
  Work w = work({.cp = 4});
  const auto cp_calls = [&] {
    Words words = w.words();
    words.insert(words.end(), {"--dtype", "bf16"});
    Calls only;
    for (const auto& [key, total] : calls_of_all(words))
      if (std::get<0>(key) == "cp") only[key] = total;
    return only;
  };
  const Total values = {layers * (2 * c - 2), layers * (2 * c - 2) * pair}, gradients = {layers * c, layers * c * pair};
  EXPECT_EQ(cp_calls(), (Calls{{{"cp", "Send", "bfloat16"}, values},
                               {{"cp", "Recv", "bfloat16"}, values},
                               {{"cp", "Send", "float32"}, gradients},
                               {{"cp", "Recv", "float32"}, gradients}}));
  w.context = "allgather";
  EXPECT_EQ(cp_calls(), (Calls{{{"cp", "AllGather", "bfloat16"}, {layers * 2, layers * 2 * pair}},
                               {{"cp", "ReduceScatter", "float32"}, {layers, layers * pair}}}));
}

// Messages: 2 m (p v - 1) in all, whatever the schedule.
TEST(CallsOfModes, Pipeline) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-2"}) {
    Work w = work({.pp = 2});
    w.schedule = schedule;
    w.chunks = w.schedule == "interleaved" ? 2 : 1;
    w.accum = 4;
    expect_calls(w);
    int64_t sent = 0;
    for (int rank = 0; rank < 2; ++rank)
      for (const char* direction : {"pp-activations", "pp-gradients"})
        sent += formula(w, rank)[{direction, "Send", "float32"}].calls;
    EXPECT_EQ(sent, 2 * w.accum * (2 * w.chunks - 1));
  }
  expect_calls(work({.pp = 4}));
}

TEST(CallsOfModes, ExpertParallel) {
  expect_calls(with_experts({.dp = 2, .ep = 2}, 2));
  expect_calls(with_experts({.dp = 4, .ep = 2}, 4));
  expect_calls(with_experts({.dp = 4, .ep = 4}, 4));
  expect_calls(with_experts({.cp = 2, .ep = 2}, 2));
  Work w = with_experts({.tp = 2, .ep = 2}, 2);
  w.sequence = true;
  expect_calls(w);
}

// Where the router chooses, all rows go somewhere and come back: top_k rows a token in each of four exchanges.
TEST(CallsOfModes, RowsOfChosenExpertsAreNeitherLostNorDoubled) {
  Work w = with_experts({.dp = 4, .ep = 4}, 4);
  w.config.top_k = 2;
  int64_t sent = 0;
  for (const Calls& calls : calls_of_ranks(w.words()))
    for (const auto& [key, total] : calls)
      if (std::get<0>(key) == "ep" && std::get<1>(key).rfind("Send", 0) == 0) sent += total.elements;
  const int64_t times = 4 * w.accum * w.config.layers, rows = w.sequences * w.config.seq * w.config.top_k;
  EXPECT_EQ(sent, times * (4 * rows * w.config.width + w.config.experts));
}

TEST(CallsOfModes, Combinations) {
  Work sharded = work({.dp = 2, .pp = 2, .tp = 2});
  sharded.zero = 1;
  expect_calls(sharded);
  Work dense = work({.pp = 2, .cp = 2, .tp = 2});
  dense.sequence = true;
  dense.schedule = "interleaved";
  dense.chunks = 2;
  expect_calls(dense);
  Work sparse = with_experts({.dp = 2, .cp = 2, .tp = 2, .ep = 4}, 4);
  sparse.sequence = true;
  sparse.context = "allgather";
  expect_calls(sparse);
}

// As threads of one process.
TEST(CallsOfModes, SixtyFourRanks) {
  Work w;
  w.config.layers = 4;
  w.config.heads = 8;
  w.config.width = w.config.seq = 16;
  w.shape = {.dp = 2, .pp = 4, .tp = 8};
  expect_calls(w);
  // Experts need tokens of their own on each tensor-parallel rank.
  w.config.experts = w.config.top_k = 2;
  w.shape.ep = 2;
  w.sequence = true;
  expect_calls(w);
}

}  // namespace
}  // namespace train::test
