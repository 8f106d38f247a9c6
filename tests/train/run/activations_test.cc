// SPDX-License-Identifier: MIT
//
// Activations in dumps: in every mode those of one rank, element by element at 1e-12, and the first one that differs is
// the output of the layer that is wrong.

#include "reference/train/run/activations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "reference/train/run/build.h"
#include "tests/train/run/command_line.h"
#include "tests/train/run/harness.h"
#include "verify/compare/compare.h"
#include "verify/compare/order.h"

namespace train::test {
namespace {

using lockstep::dump::Range;
using Kind = lockstep::dump::Placement::Kind;

const std::string kBase =
    "--layers 2 --heads 4 --width 16 --seq 16 --global-batch 8 --steps 1 --mask-fraction 0.4 --packed --dropout 0.1 "
    "--eps 1e-4 --dtype fp64 --dump-act * ";

TEST(Activations, ASliceWhereTheyMakeOneElseRanges) {
  const std::vector<int64_t> global{4, 6, 8};
  // Two whole sequences, half of the columns.
  auto placed = place_rows(global, {6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}, {{4, 8}}, Kind::owned);
  EXPECT_EQ(placed.slice, (std::vector<Range>{{1, 3}, {0, 6}, {4, 8}}));
  // The same places of each of two sequences.
  placed = place_rows(global, {2, 3, 8, 9}, {{0, 8}}, Kind::replica);
  EXPECT_EQ(placed.slice, (std::vector<Range>{{0, 2}, {2, 4}, {0, 8}}));
  EXPECT_EQ(placed.kind, Kind::replica);
  // First and last part of a sequence, rows that meet between sequences, and columns in two pieces.
  placed = place_rows(global, {0, 1, 4, 5, 6}, {{0, 8}}, Kind::owned);
  EXPECT_EQ(placed.flat, (std::vector<Range>{{0, 16}, {32, 56}}));
  placed = place_rows(global, {1, 2}, {{0, 2}, {6, 8}}, Kind::owned);
  EXPECT_EQ(placed.flat, (std::vector<Range>{{8, 10}, {14, 18}, {22, 24}}));
  // Padding lies nowhere.
  placed = place_rows(global, {3}, {{6, 10}}, Kind::owned);
  EXPECT_EQ(placed.slice, (std::vector<Range>{{0, 1}, {3, 4}, {6, 8}}));
  placed = place_rows(global, {3}, {{8, 10}}, Kind::owned);
  EXPECT_EQ(placed.flat, (std::vector<Range>{{0, 0}}));
}

std::vector<std::string> dumped(const Trained& trained) {
  std::vector<std::string> names;
  const auto folder = lockstep::dump::open_folder(*trained.dump);
  if (!folder) return names;
  const auto step = lockstep::dump::open_step(*folder, 1);
  if (!step) return names;
  for (const auto& [name, shards] : step->tensors)
    if (name.rfind("act/", 0) == 0) names.push_back(name.substr(4));
  std::sort(names.begin(), names.end(),
            [](const auto& a, const auto& b) { return lockstep::verify::computed_before("act/" + a, "act/" + b); });
  return names;
}

// All of the model's, and compare's order is that in which they are made.
TEST(Activations, ThosePromisedInTheOrderOfTheForwardPass) {
  for (const char* model : {"", "--experts 4 --pos rotary --untied"}) {
    const std::string line = kBase + model;
    EXPECT_EQ(dumped(train(line)), activation_names(config_of(parse_line(line)))) << model;
  }
  const Trained some = train(kBase.substr(0, kBase.size() - 2) + "transformer.h.1.ln_?");
  EXPECT_EQ(dumped(some), (std::vector<std::string>{"transformer.h.1.ln_1", "transformer.h.1.ln_2"}));
  EXPECT_TRUE(dumped(train("--layers 1 --width 16 --heads 2 --steps 1 --micro-batch 1 --seq 8")).empty());
}

struct Case {
  std::string model;
  std::vector<std::string> layouts;
};

TEST(Activations, EqualOneRankInEveryMode) {
  const std::vector<Case> cases = {
      {"",
       {"--accum 4", "--dp 2 --accum 2", "--dp 4 --zero 1", "--dp 2 --zero 2 --accum 2", "--dp 2 --zero 3",
        "--dp 2 --fsdp full --wrap layer --prefetch both", "--dp 4 --fsdp hybrid", "--tp 2", "--tp 4 --sp --accum 2",
        "--cp 2 --accum 2", "--cp 2 --cp-algo allgather", "--cp 2 --cp-algo ulysses", "--pp 2 --accum 4",
        "--pp 2 --accum 2 --schedule zero-bubble", "--dp 2 --tp 2 --cp 2 --sp --zero 1"}},
      {"--pos rotary --untied --kv-heads 2 --vocab-multiple 48 ", {"--tp 4", "--tp 2 --cp 2", "--tp 4 --sp --dp 2"}},
      {"--share-layers --optimizer sgd ", {"--dp 2 --tp 2"}},
      {"--layers 4 ", {"--pp 2 --schedule interleaved --virtual-stages 2 --accum 4 --dp 2"}},
      {"--experts 4 --capacity 1.1 ", {"--dp 2 --ep 2", "--dp 2 --cp 2 --ep 4", "--tp 2 --sp --ep 2 --accum 2"}}};
  for (const auto& [model, layouts] : cases) {
    std::string base = kBase + model;
    if (model.rfind("--layers", 0) == 0) base.erase(0, std::string("--layers 2 ").size());
    const Trained alone = train(base);
    for (const std::string& layout : layouts)
      EXPECT_EQ(compare(alone, train(base + layout), 1e-12).difference, "") << model << layout;
  }
}

// What a bf16 model computes with is bf16, what its optimizer keeps is not.
TEST(Activations, StateOfABf16ModelKeepsItsType) {
  std::string line = kBase;
  line.replace(line.find("fp64"), 4, "bf16");
  const Trained trained = train(line + "--tp 2");
  const auto folder = lockstep::dump::open_folder(*trained.dump);
  ASSERT_TRUE(folder) << folder.error();
  const auto step = lockstep::dump::open_step(*folder, 1);
  ASSERT_TRUE(step) << step.error();
  for (const auto& [name, shards] : step->tensors) {
    const bool integers = name.rfind("batch/", 0) == 0;
    const bool narrow = name.rfind("act/", 0) == 0 || name.rfind("param/", 0) == 0;
    EXPECT_EQ(shards[0].stored->dtype, integers ? lockstep::dump::Dtype::i32
                                       : narrow ? lockstep::dump::Dtype::bf16
                                                : lockstep::dump::Dtype::f32)
        << name;
  }
  EXPECT_EQ(step->tensors.count("master/transformer.h.1.mlp.c_fc.weight"), 1u);
  EXPECT_EQ(step->computed_in, lockstep::dump::Dtype::bf16);
}

std::string first_activation(const Trained& a, const Trained& b) {
  lockstep::verify::CompareOptions options;
  options.only = "act/*";
  const auto found = lockstep::verify::compare_folders(*a.dump, *b.dump, options);
  if (!found) return found.error();
  return found->differences.empty() ? "none" : found->differences[0].name;
}

// Controls: other dropout in the embeddings shows there; layers that keep their first values, where they matter first.
TEST(Activations, TheFirstThatDiffersNamesTheLayer) {
  std::string line = kBase;
  line.replace(line.find("--steps 1"), 9, "--steps 2");
  const Trained alone = train(line);
  EXPECT_EQ(first_activation(alone, train(line + "--seed 2")), "act/transformer.drop");
  const Trained frozen = train(line + "--tp 2 --freeze *wte* --freeze *wpe* --freeze *.h.0.* --freeze *.h.1.ln_1*");
  const Trained thawed =
      train(line + "--freeze *wte* --freeze *wpe* --freeze *.h.0.* --freeze *.h.1.ln_1* --freeze *.h.1.attn*");
  EXPECT_EQ(first_activation(thawed, frozen), "act/transformer.h.1.attn.c_attn");
}

}  // namespace
}  // namespace train::test
