// SPDX-License-Identifier: MIT
//
// Everything that shards over data parallelism against one rank: losses, every gradient, norms, parameters and moments
// before the first update and after each of five steps. What makes mistakes visible is on: ranks with unequal numbers
// of targets, packed documents, dropout, an active clip, several micro-batches, vocabulary padding. Double precision
// shows errors of logic at 1e-12; single precision is there for the arithmetic.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/train/run/harness.h"
#include "verify/compare/compare.h"
#include "verify/compare/tolerance.h"
#include "verify/dump/folder.h"

namespace train::test {
namespace {

const std::string kBase =
    "--layers 2 --heads 2 --width 16 --seq 16 --vocab-multiple 48 --global-batch 8 --steps 5 --mask-fraction 0.4 "
    "--packed "
    "--dropout 0.1 --clip 0.5 --lr 0.01 --warmup 2 --decay-steps 8 --eps 1e-4 ";

// A family of layouts, at 2 and at 4 ranks.
struct Family {
  std::string name;
  std::vector<std::string> options;
  friend void PrintTo(const Family& f, std::ostream* out) { *out << f.name; }
};

Family fsdp(const std::string& name, const std::string& kind) {
  Family family{name, {}};
  for (const char* wrap : {"block", "layer", "size:2000", "none"})
    family.options.push_back("--fsdp " + kind + " --wrap " + wrap +
                             (std::string(wrap) == "layer" ? " --prefetch both --accum 2" : " --prefetch forward"));
  return family;
}

std::vector<Family> families() {
  return {
      {"data_parallel", {"", "--accum 2 --bucket-mb 0.01"}},
      {"zero_1", {"--zero 1 --bucket-mb 0.004", "--zero 1 --accum 2 --no-overlap"}},
      {"zero_2", {"--zero 2", "--zero 2 --accum 2 --bucket-mb 0.004"}},
      {"zero_3", {"--zero 3 --prefetch both", "--zero 3 --accum 2 --prefetch none --no-overlap"}},
      fsdp("fsdp_full", "full"),
      fsdp("fsdp_grad_op", "grad-op"),
      fsdp("fsdp_hybrid", "hybrid"),
      {"no_sync",
       {"--zero 2 --accum 2 --no-sync", "--zero 3 --accum 2 --no-sync", "--fsdp full --accum 2 --no-sync",
        "--fsdp grad-op --accum 2 --no-sync --wrap size:2000", "--fsdp hybrid --accum 2 --no-sync --wrap layer"}},
      {"pipeline",
       {"--pp 2 --accum 4", "--pp 2 --accum 2 --schedule zero-bubble --zero 1",
        "--pp 2 --accum 4 --fsdp full --no-sync"}},
      {"context_parallel", {"--cp 2", "--cp 2 --cp-algo allgather --zero 2", "--cp 2 --cp-algo ulysses --fsdp full"}},
      {"beside_tensor_parallel", {"--tp 2 --zero 1", "--tp 2 --sp --fsdp full --accum 2"}}};
}

class Layouts : public testing::TestWithParam<Family> {};

// One run of one rank for all layouts of a type.
const Trained& one_rank(const std::string& dtype) {
  static std::map<std::string, Trained> known;
  auto& trained = known[dtype];
  if (trained.loss.empty()) trained = train(kBase + "--dp 1 --dtype " + dtype);
  return trained;
}

TEST_P(Layouts, EqualOneRank) {
  for (const char* ranks : {"--ranks 2 ", "--ranks 4 "})
    for (const std::string& options : GetParam().options) {
      const std::string line = kBase + ranks + options;
      const Verdict exact = compare(one_rank("fp64"), train(line + " --dtype fp64"), 1e-12);
      EXPECT_EQ(exact.difference, "") << ranks << options;
      const Verdict single = compare(one_rank("fp32"), train(line + " --dtype fp32"), 1e-5);
      EXPECT_EQ(single.difference, "") << ranks << options;
      EXPECT_NE(single.worst, 0) << ranks << options;  // other orders of summation show: they are two computations
    }
}

INSTANTIATE_TEST_SUITE_P(All, Layouts, testing::ValuesIn(families()),
                         [](const auto& param_info) { return param_info.param.name; });

// What is compared is there, moves, and is seen when it is wrong.
TEST(LayoutsControl, OtherTrainingsDiffer) {
  const Trained& base = one_rank("fp64");
  const auto folder = lockstep::dump::open_folder(*base.dump);
  ASSERT_TRUE(folder) << folder.error();
  const auto has = [&](int64_t step, const char* tensor) {
    const auto opened = lockstep::dump::open_step(*folder, step);
    return opened && opened->tensors.count(tensor) == 1;
  };
  EXPECT_TRUE(has(0, "param/transformer.wte.weight"));
  EXPECT_TRUE(has(1, "grad/transformer.h.1.mlp.c_proj.bias"));
  EXPECT_TRUE(has(5, "adam_v/transformer.ln_f.weight"));
  EXPECT_NE(base.tokens[0], 8 * 16);
  EXPECT_GT(base.norm[0], 0.5);  // the clip acts
  for (const char* change : {"--seed 2", "--clip 0.4", "--lr 0.0101", "--mask-fraction 0.39", "--dropout 0.2"}) {
    std::string line = kBase;
    const std::string flag = std::string(change).substr(0, std::string(change).find(' ') + 1);
    if (const size_t at = line.find(flag); at != std::string::npos)
      line.erase(at, line.find(' ', at + flag.size()) - at);
    EXPECT_NE(compare(base, train(line + change + " --dp 2 --dtype fp64"), 1e-4).difference, "") << change;
  }
}

TEST(LayoutsMore, OtherModelsToo) {
  const std::string base =
      "--layers 4 --heads 4 --kv-heads 2 --width 16 --seq 12 --global-batch 4 --steps 3 --lr 0.01 "
      "--eps 1e-4 --dtype fp64 --dropout 0.2 --mask-fraction 0.2 ";
  for (const char* model :
       {"--pos rotary --untied", "--share-layers --optimizer sgd", "--freeze *wpe* --freeze *.h.1.*"}) {
    const Trained alone = train(base + model);
    for (const char* layout :
         {"--dp 2 --zero 2 --accum 2", "--dp 4 --fsdp full --wrap layer", "--dp 2 --accum 2",
          "--dp 4 --fsdp hybrid --hybrid-shard 1", "--dp 2 --zero 3", "--dp 2 --fsdp full --accum 2 --no-sync"}) {
      EXPECT_EQ(compare(alone, train(base + model + " " + layout), 1e-12).difference, "") << model << " " << layout;
    }
  }
}

// Tensors of step 1 that are zero in every element.
int zero_gradients(const Trained& trained) {
  const auto folder = lockstep::dump::open_folder(*trained.dump);
  const auto step = lockstep::dump::open_step(*folder, 1);
  int zero = 0;
  for (const auto& [name, shards] : step->tensors) {
    if (name.rfind("grad/", 0) != 0) continue;
    const auto& stored = *shards.front().stored;
    std::vector<double> values(static_cast<size_t>(stored.elements()));
    lockstep::dump::to_double(stored.dtype, stored.data, values.size(), values.data());
    zero += std::all_of(values.begin(), values.end(), [](double x) { return x == 0; });
  }
  return zero;
}

// Sixteen tokens for eight experts, one each: in a step some experts, in most ranks' micro-batches many, are not used.
TEST(LayoutsMore, ParametersThatAStepDoesNotUse) {
  const std::string base =
      "--layers 2 --heads 2 --width 16 --seq 4 --global-batch 4 --steps 3 --lr 0.01 --eps 1e-4 --dtype fp64 "
      "--dropout 0.1 --clip 0.5 --mask-fraction 0.3 --experts 8 --top-k 1 ";
  const Trained alone = train(base);
  EXPECT_GT(zero_gradients(alone), 3);
  for (const char* layout :
       {"--dp 2 --bucket-mb 0.004", "--dp 2 --zero 1", "--dp 2 --zero 2 --accum 2", "--dp 4 --zero 3 --prefetch both",
        "--dp 2 --fsdp full --wrap layer --accum 2", "--dp 2 --fsdp grad-op --wrap size:2000",
        "--dp 4 --fsdp hybrid --wrap none", "--dp 2 --fsdp full --accum 2 --no-sync"})
    EXPECT_EQ(compare(alone, train(base + layout), 1e-12).difference, "") << layout;
}

// What `lockstep compare` allows in bf16 must hold what tensor parallelism does to sums that are rounded on the way.
TEST(LayoutsMore, Bf16OfTensorParallelRanksIsTheSameToCompare) {
  const double allowed = lockstep::verify::tolerance_of(lockstep::dump::Dtype::bf16).rtol;
  const std::string base = "--layers 2 --heads 2 --width 8 --seq 8 --micro-batch 2 --steps 3 --eps 1e-4 --dtype bf16 ";
  for (const char* seed : {"--seed 2 --accum 4 ", "--seed 4 --accum 4 "}) {
    const Trained alone = train(base + seed);
    for (const char* layout : {"--tp 2", "--tp 2 --sp"})
      EXPECT_EQ(compare(alone, train(base + seed + layout), allowed).difference, "") << seed << layout;
  }
}

// The reasons that docs/dump-format.md gives for bf16's tolerance: how far another layout takes gradients, their
// squares in Adam's v, and a bias that began at zero, which is nothing but the sum of Adam's first steps.
TEST(LayoutsMore, Bf16MovesEachKindOfTensorAsFarAsTheToleranceSays) {
  const double allowed = lockstep::verify::tolerance_of(lockstep::dump::Dtype::bf16).rtol;
  const std::string base =
      "--layers 2 --heads 4 --width 64 --seq 32 --global-batch 16 --accum 2 --steps 3 --eps 1e-4 --dtype bf16 ";
  const Trained alone = train(base);
  double largest = 0;
  for (const char* layout : {"--tp 2 --sp", "--tp 4"}) {
    const Trained other = train(base + layout);
    const auto found = lockstep::verify::compare_folders(*alone.dump, *other.dump, {});
    ASSERT_TRUE(found) << found.error();
    EXPECT_EQ(found->status, lockstep::verify::Status::same) << layout;
    const auto worst = [&](const char* kind) { return found->summaries.at(kind).worst; };
    EXPECT_LT(worst("grad"), 1e-2) << layout;
    EXPECT_LT(worst("adam_v"), 2e-2) << layout;
    EXPECT_LT(worst("master"), allowed) << layout;
    const std::string& name = found->summaries.at("master").worst_name;
    EXPECT_EQ(name.substr(std::max<size_t>(name.size(), 5) - 5), ".bias") << layout;
    largest = std::max(largest, worst("master"));
  }
  EXPECT_GT(largest, 2e-2);  // twice what gradients may have: the tolerance is not wider than it must be
}

TEST(LayoutsMore, Bf16WithMasterWeightsFollowsFp32) {
  const std::string base =
      "--layers 2 --heads 2 --width 16 --seq 16 --global-batch 8 --steps 5 --lr 0.01 --eps 1e-4 "
      "--dtype bf16 --loss-scale 1024 ";
  const Trained alone = train(base);
  for (const char* layout : {"--dp 2", "--dp 2 --zero 1", "--dp 4 --zero 2", "--dp 2 --fsdp full",
                             "--dp 4 --fsdp hybrid --accum 2", "--dp 2 --zero 3 --accum 2 --no-sync"}) {
    // Sums of bf16 activations in other micro-batches.
    EXPECT_EQ(compare(alone, train(base + layout), 2e-2).difference, "") << layout;
  }
}

TEST(LayoutsMore, CompressedGradientsTrainToo) {
  const std::string base = "--layers 2 --heads 2 --width 16 --seq 16 --dp 2 --steps 30 --lr 0.01 --optimizer sgd ";
  const Trained exact = train_quietly(base), bf16 = train_quietly(base + "--compress bf16"),
                topk = train_quietly(base + "--compress topk --topk-fraction 0.1");
  EXPECT_NE(bf16.loss.back(), exact.loss.back());
  EXPECT_NEAR(bf16.loss.back(), exact.loss.back(), 0.01);
  EXPECT_GT(exact.loss.front() - exact.loss.back(), 0.1);  // what was left out comes with later steps
  EXPECT_GT(topk.loss.front() - topk.loss.back(), (exact.loss.front() - exact.loss.back()) / 2);
}

}  // namespace
}  // namespace train::test
