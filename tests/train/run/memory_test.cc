// SPDX-License-Identifier: MIT
//
// Memory of parameters, gradients, optimizer and gathered units by CUDA's own account (the peaks of memory pools),
// against the formulas of docs/trainer.md, to 2 %. P parameters, n ranks, R in the root unit, B in a block.

#include <gtest/gtest.h>

#include <algorithm>

#include "reference/train/model/parameters.h"
#include "tests/train/run/harness.h"

namespace train::test {
namespace {

const std::string kModel = "--layers 4 --heads 4 --width 64 --seq 32 --micro-batch 1 --steps 2 --dropout 0.1 ";

Config model_of_test() {
  Config config;
  config.layers = config.heads = 4;
  config.width = 64;
  config.seq = 32;
  return config;
}

// Of one rank: the first of its groups, and there those with one of these words in their names.
double parameters_of(const Config& config, int tp, int ep, const std::vector<std::string>& words = {""}) {
  Groups groups;
  groups.tp = Comm(nullptr, 0, tp, "", {});
  groups.ep = Comm(nullptr, 0, ep, "", {});
  double count = 0;
  const Parameters all(config, groups);
  for (const auto& p : all.all())
    for (const std::string& word : words)
      if (p->name.find(word) != std::string::npos) count += static_cast<double>(p->count);
  return count;
}
double parameters(const std::string& word = "") { return parameters_of(model_of_test(), 1, 1, {word}); }

const double P = parameters(), B = parameters("h.0."), R = P - 4 * B, wte = parameters("wte"),
             mlp = parameters("h.0.mlp") + parameters("h.0.ln_2");

struct Bytes {
  double values, gradients, optimizer, gathered;
};

void expect_memory(const std::string& options, const Bytes& expected) {
  const auto memory = train_quietly(kModel + options).memory;
  const auto near = [&](const char* purpose, double wanted) {
    EXPECT_NEAR(memory.at(purpose), wanted, 0.02 * wanted) << options << ' ' << purpose;
  };
  near("parameters", expected.values);
  near("gradients", expected.gradients);
  near("optimizer", expected.optimizer);
  near("gathered", expected.gathered);
}

TEST(MemoryOfModes, DataParallel) {
  expect_memory("--dp 1", {4 * P, 4 * P, 8 * P, 0});
  expect_memory("--dp 2", {4 * P, 4 * P, 8 * P, 0});
  expect_memory("--dp 2 --dtype fp64", {8 * P, 8 * P, 16 * P, 0});
  expect_memory("--dp 2 --dtype bf16", {2 * P, 4 * P, 12 * P, 0});
  expect_memory("--dp 2 --optimizer sgd", {4 * P, 4 * P, 4 * P, 0});
  // Beside the sum, the gradients of one micro-batch of one module, and of the tied embedding.
  expect_memory("--dp 2 --accum 2", {4 * P, 4 * (P + mlp + wte), 8 * P, 0});
}

TEST(MemoryOfModes, Zero1And2) {
  expect_memory("--dp 4 --zero 1", {4 * P, 4 * P, 8 * P / 4, 0});
  // Buckets of a module each: two in turn, or one, and the embeddings' of its own.
  const double embeddings = wte + parameters("wpe");
  expect_memory("--dp 4 --zero 2 --bucket-mb 0.0001", {4 * P, 4 * (P / 4 + embeddings + 2 * mlp), 8 * P / 4, 0});
  expect_memory("--dp 4 --zero 2 --bucket-mb 0.0001 --no-overlap",
                {4 * P, 4 * (P / 4 + embeddings + mlp), 8 * P / 4, 0});
  expect_memory("--dp 2 --zero 2 --bucket-mb 0.0001 --accum 2",
                {4 * P, 4 * (P / 2 + (embeddings + 2 * mlp) * 1.5), 8 * P / 2, 0});
}

TEST(MemoryOfModes, Fsdp) {
  const Bytes two = {4 * P / 4, 4 * (P / 4 + R + 2 * B), 8 * P / 4, 4 * (R + 2 * B)};
  expect_memory("--dp 4 --fsdp full --prefetch backward", two);
  expect_memory("--dp 4 --fsdp full --prefetch both", two);
  expect_memory("--dp 4 --fsdp full --prefetch none --no-overlap",
                {4 * P / 4, 4 * (P / 4 + R + B), 8 * P / 4, 4 * (R + B)});
  expect_memory("--dp 4 --zero 3", {4 * P / 4, 4 * (P / 4 + R + 2 * mlp), 8 * P / 4, 4 * (R + 2 * mlp)});
  expect_memory("--dp 4 --fsdp full --wrap none", {4 * P / 4, 4 * (P / 4 + P), 8 * P / 4, 4 * P});
  expect_memory("--dp 4 --fsdp grad-op", {4 * P / 4, 4 * (P / 4 + R + 2 * B), 8 * P / 4, 4 * P});
  expect_memory("--dp 4 --fsdp hybrid", {4 * P / 2, 4 * (P / 2 + R + 2 * B), 8 * P / 2, 4 * (R + 2 * B)});
  expect_memory("--dp 4 --fsdp full --dtype bf16", {2 * P / 4, 4 * (P / 4 + R + 2 * B), 12 * P / 4, 2 * (R + 2 * B)});
}

// Gradients whole on every rank, the shard a part of them, and the scratch of plain data parallelism.
TEST(MemoryOfModes, WithoutSynchronisation) {
  const double whole = 4 * (P + mlp + wte);
  expect_memory("--dp 4 --fsdp full --accum 2 --no-sync", {4 * P / 4, whole, 8 * P / 4, 4 * (R + 2 * B)});
  expect_memory("--dp 4 --fsdp hybrid --accum 2 --no-sync", {4 * P / 2, whole, 8 * P / 2, 4 * (R + 2 * B)});
  expect_memory("--dp 2 --zero 3 --accum 3 --no-sync", {4 * P / 2, whole, 8 * P / 2, 4 * (R + 2 * mlp)});
  expect_memory("--dp 4 --zero 2 --accum 2 --no-sync", {4 * P, whole, 8 * P / 4, 0});
}

// Rank 0's, which is of the first stage.
TEST(MemoryOfModes, ModesThatSplitTheModelHaveTheirPart) {
  Config config = model_of_test();
  const auto whole = [&](double p) { return Bytes{4 * p, 4 * p, 8 * p, 0}; };
  expect_memory("--tp 2", whole(parameters_of(config, 2, 1)));
  expect_memory("--tp 4 --sp", whole(parameters_of(config, 4, 1)));
  expect_memory("--cp 4", whole(P));
  // The gradient of a tied table is summed between the ends in memory of its own.
  const auto stage = [&](int tp, const std::vector<std::string>& layers, double shards) {
    std::vector<std::string> words = layers;
    words.insert(words.end(), {"wte", "wpe"});
    const double p = parameters_of(config, tp, 1, words), table = parameters_of(config, tp, 1, {"wte"});
    return Bytes{4 * p, 4 * (p + table), 8 * p / shards, 0};
  };
  expect_memory("--pp 2", stage(1, {"h.0.", "h.1."}, 1));
  expect_memory("--pp 4 --tp 2", stage(2, {"h.0."}, 1));
  expect_memory("--pp 2 --tp 2 --dp 2 --zero 1", stage(2, {"h.0.", "h.1."}, 2));
  config.experts = 4;
  expect_memory("--dp 4 --experts 4 --ep 2", whole(parameters_of(config, 1, 2)));
  expect_memory("--dp 2 --experts 4 --ep 2", whole(parameters_of(config, 1, 2)));
}

}  // namespace
}  // namespace train::test
