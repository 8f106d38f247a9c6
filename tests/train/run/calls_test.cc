// SPDX-License-Identifier: MIT
//
// How many calls of which size data parallelism and what shards over it make in a step, read from the shim's trace of
// the program, against the formulas in docs/trainer.md. P parameters, n ranks, m micro-batches, U units.

#include <gtest/gtest.h>

#include <cmath>

#include "reference/train/model/parameters.h"
#include "tests/train/run/traced.h"

namespace train::test {
namespace {

constexpr int kLayers = 3;
const Words kModel = {"--layers", "3", "--heads", "2", "--width", "16", "--seq", "16"};

// Elements of the parameters with these words in their names.
int64_t parameters(const std::string& word = "") {
  Config config;
  config.layers = kLayers;
  config.heads = 2;
  config.width = config.seq = 16;
  int64_t count = 0;
  const Groups alone;
  const Parameters all(config, alone);
  for (const auto& p : all.all())
    if (p->name.find(word) != std::string::npos) count += p->count;
  return count;
}

Calls calls_in_step(const Words& options, int verdict = 0) {
  Words words = kModel;
  words.insert(words.end(), options.begin(), options.end());
  return calls_of_all(words, verdict);
}

int64_t padded(int64_t count, int64_t ranks) { return (count + ranks - 1) / ranks * ranks; }
const Total kStatistics = {1, 2};     // losses and tokens, one all-reduce a step
Total norm_pair() { return {1, 2}; }  // the double-double of the norm, one all-gather a step

TEST(CallsOfModes, OneRankMakesNone) {
  EXPECT_TRUE(calls_in_step({}, 3).empty());  // and so there is nothing to judge
}

TEST(CallsOfModes, DataParallelReducesOnceAStep) {
  for (const char* accum : {"1", "3"}) {
    const Calls expected = {{{"dp", "AllReduce", "float32"}, {1, parameters()}},
                            {{"dp", "AllReduce", "float64"}, kStatistics}};
    EXPECT_EQ(calls_in_step({"--dp", "2", "--accum", accum}), expected);
  }
  Calls many = calls_in_step({"--dp", "4", "--bucket-mb", "0.01"});
  Total& total = many[{"dp", "AllReduce", "float32"}];
  EXPECT_EQ(total.elements, parameters());  // not padded
  EXPECT_GT(total.calls, 3);
}

TEST(CallsOfModes, CompressionHalvesOrThins) {
  const Calls half = {{{"dp", "AllReduce", "bfloat16"}, {1, parameters()}},
                      {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "2", "--compress", "bf16"}), half);
  const int64_t k = std::llround(0.05 * static_cast<double>(parameters()));
  const Calls thin = {{{"dp", "AllGather", "float32"}, {1, k}},
                      {{"dp", "AllGather", "int32"}, {1, k}},
                      {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "2", "--compress", "topk", "--topk-fraction", "0.05"}), thin);
}

TEST(CallsOfModes, Zero1ScattersAndGathersOnceAStep) {
  const int64_t shard = padded(parameters(), 4) / 4;
  const Calls expected = {{{"dp", "ReduceScatter", "float32"}, {1, shard}},
                          {{"dp", "AllGather", "float32"}, {1, shard}},
                          {{"dp", "AllGather", "float64"}, norm_pair()},
                          {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "4", "--zero", "1", "--accum", "3"}), expected);
}

TEST(CallsOfModes, Zero2ScattersEveryMicroBatch) {
  const int64_t shard = padded(parameters(), 4) / 4;
  const Calls expected = {{{"dp", "ReduceScatter", "float32"}, {3, 3 * shard}},
                          {{"dp", "AllGather", "float32"}, {1, shard}},
                          {{"dp", "AllGather", "float64"}, norm_pair()},
                          {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "4", "--zero", "2", "--accum", "3"}), expected);
}

// Shards of all units, each padded.
struct UnitSizes {
  int64_t count, all, root;
};
UnitSizes units(const std::string& wrap, int64_t ranks) {
  const int64_t layer = parameters("h.0."), mlp = parameters("h.0.mlp") + parameters("h.0.ln_2");
  const int64_t rest = parameters() - kLayers * layer, root = padded(rest, ranks) / ranks;
  if (wrap == "none") return {1, padded(parameters(), ranks) / ranks, padded(parameters(), ranks) / ranks};
  if (wrap == "block") return {kLayers + 1, root + kLayers * padded(layer, ranks) / ranks, root};
  return {2 * kLayers + 1, root + kLayers * (padded(mlp, ranks) + padded(layer - mlp, ranks)) / ranks, root};
}

TEST(CallsOfModes, FullShardGathersTwiceButTheRoot) {
  for (const char* wrap : {"block", "layer", "none"})
    for (const char* prefetch : {"none", "both"}) {
      const UnitSizes u = units(wrap, 4);
      const Calls expected = {{{"dp", "AllGather", "float32"}, {2 * (2 * u.count - 1), 2 * (2 * u.all - u.root)}},
                              {{"dp", "ReduceScatter", "float32"}, {2 * u.count, 2 * u.all}},
                              {{"dp", "AllGather", "float64"}, norm_pair()},
                              {{"dp", "AllReduce", "float64"}, kStatistics}};
      EXPECT_EQ(calls_in_step({"--dp", "4", "--fsdp", "full", "--wrap", wrap, "--prefetch", prefetch, "--accum", "2"}),
                expected)
          << wrap << ' ' << prefetch;
    }
}

TEST(CallsOfModes, Zero3KeepsNothing) {
  const UnitSizes u = units("layer", 2);
  const Calls expected = {{{"dp", "AllGather", "float32"}, {2 * 2 * u.count, 2 * 2 * u.all}},
                          {{"dp", "ReduceScatter", "float32"}, {2 * u.count, 2 * u.all}},
                          {{"dp", "AllGather", "float64"}, norm_pair()},
                          {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "2", "--zero", "3", "--accum", "2"}), expected);
}

TEST(CallsOfModes, ShardGradOpGathersOnce) {
  const UnitSizes u = units("block", 4);
  const Calls expected = {{{"dp", "AllGather", "float32"}, {2 * u.count, 2 * u.all}},
                          {{"dp", "ReduceScatter", "float32"}, {2 * u.count, 2 * u.all}},
                          {{"dp", "AllGather", "float64"}, norm_pair()},
                          {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "4", "--fsdp", "grad-op", "--accum", "2"}), expected);
}

// Gathers as ever, reductions in the last micro-batch only.
TEST(CallsOfModes, WithoutSynchronisationScattersOnceAStep) {
  const UnitSizes u = units("block", 4), layers = units("layer", 2), half = units("block", 2);
  const Calls full = {{{"dp", "AllGather", "float32"}, {3 * (2 * u.count - 1), 3 * (2 * u.all - u.root)}},
                      {{"dp", "ReduceScatter", "float32"}, {u.count, u.all}},
                      {{"dp", "AllGather", "float64"}, norm_pair()},
                      {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "4", "--fsdp", "full", "--no-sync", "--accum", "3"}), full);
  const Calls zero3 = {{{"dp", "AllGather", "float32"}, {2 * 2 * layers.count, 2 * 2 * layers.all}},
                       {{"dp", "ReduceScatter", "float32"}, {layers.count, layers.all}},
                       {{"dp", "AllGather", "float64"}, norm_pair()},
                       {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "2", "--zero", "3", "--no-sync", "--accum", "2"}), zero3);
  const int64_t shard = padded(parameters(), 4) / 4;
  const Calls zero2 = {{{"dp", "ReduceScatter", "float32"}, {1, shard}},
                       {{"dp", "AllGather", "float32"}, {1, shard}},
                       {{"dp", "AllGather", "float64"}, norm_pair()},
                       {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "4", "--zero", "2", "--no-sync", "--accum", "3"}), zero2);
  const Calls hybrid = {
      {{"dp-shard", "AllGather", "float32"}, {2 * (2 * half.count - 1), 2 * (2 * half.all - half.root)}},
      {{"dp-shard", "ReduceScatter", "float32"}, {half.count, half.all}},
      {{"dp-replicas", "AllReduce", "float32"}, {half.count, half.all}},
      {{"dp-shard", "AllGather", "float64"}, norm_pair()},
      {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "4", "--fsdp", "hybrid", "--no-sync", "--accum", "2"}), hybrid);
}

// On the stream that computes nothing is beside anything. With overlap there are others.
TEST(CallsOfModes, WithoutOverlapAllAreOnTheComputeStream) {
  const Words layouts[] = {{"--dp", "2", "--tp", "2", "--sp", "--fsdp", "full", "--prefetch", "both"},
                           {"--dp", "2", "--cp", "2", "--zero", "2", "--accum", "2"}};
  for (const Words& layout : layouts)
    for (const bool overlap : {true, false}) {
      Words words = kModel;
      words.insert(words.end(), layout.begin(), layout.end());
      if (!overlap) words.push_back("--no-overlap");
      const std::vector<size_t> streams = streams_of_ranks(words);
      EXPECT_EQ(streams.size(), 4u);
      for (const size_t count : streams) EXPECT_EQ(count, overlap ? 3u : 1u) << layout[4];
    }
}

// Values travel as they are computed with, gradients as they are summed.
TEST(CallsOfModes, Bf16GathersHalfAndReducesWhole) {
  const UnitSizes u = units("block", 2);
  const Calls expected = {{{"dp", "AllGather", "bfloat16"}, {2 * u.count - 1, 2 * u.all - u.root}},
                          {{"dp", "ReduceScatter", "float32"}, {u.count, u.all}},
                          {{"dp", "AllGather", "float64"}, norm_pair()},
                          {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "2", "--fsdp", "full", "--dtype", "bf16"}), expected);
}

TEST(CallsOfModes, HybridReducesOverReplicasOnceAStep) {
  const UnitSizes u = units("block", 2);
  const Calls expected = {{{"dp-shard", "AllGather", "float32"}, {2 * (2 * u.count - 1), 2 * (2 * u.all - u.root)}},
                          {{"dp-shard", "ReduceScatter", "float32"}, {2 * u.count, 2 * u.all}},
                          {{"dp-replicas", "AllReduce", "float32"}, {u.count, u.all}},
                          {{"dp-shard", "AllGather", "float64"}, norm_pair()},
                          {{"dp", "AllReduce", "float64"}, kStatistics}};
  EXPECT_EQ(calls_in_step({"--dp", "4", "--fsdp", "hybrid", "--accum", "2"}), expected);
}

}  // namespace
}  // namespace train::test
