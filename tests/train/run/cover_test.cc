// SPDX-License-Identifier: MIT
//
// Modes together, with every way of sharding, of models of several kinds, against one rank: a pairwise cover of what
// can be chosen in layouts of up to eight ranks, and ten layouts that nobody chose. Routing of experts first: a token
// that goes elsewhere is no error of arithmetic. Then losses, every gradient, norms, parameters and moments over five
// steps, to 1e-12 in double and 1e-5 in single precision, with unequal tokens, packed documents, dropout and clipping.
// What is legal is what the program does not refuse.
//
// In single precision parameters are held to 1e-5 after the last step, before it to ten times that. A bias begins at
// zero, so after the first step it is nothing but Adam's g / (|g| + eps): an element whose gradient is all
// cancellation, g below eps, shows g's error over eps, and g's error is that of the whole tensor. Here a bias of 16
// elements has one with |g| = 1e-5, a three-thousandth of the others; |g| is known to 3 roundings of the others' size,
// 8e-9, and with eps 1e-4 that is 1.8e-5 of the bias's norm. It is the arithmetic of the passes (sums over rows in
// double, or all of layer norm, leave it as it is); later steps add updates that do not cancel, and after five 1.4e-6
// is the most.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/train/run/command_line.h"
#include "tests/train/run/harness.h"
#include "verify/assemble/assemble.h"

namespace train::test {
namespace {

constexpr int kTopK = 2;
const std::string kBase =
    "--layers 4 --heads 4 --width 16 --seq 16 --vocab-multiple 48 --global-batch 8 --steps 5 --mask-fraction 0.4 "
    "--packed --dropout 0.1 --clip 0.5 --lr 0.01 --warmup 2 --decay-steps 8 --eps 1e-4 ";

// The questions of a layout, and what may be answered.
enum Question { model, dp, pp, cp, tp, sp, ep, way, schedule, chunks, shard, accum };
const std::vector<std::vector<std::string>> kAnswers = {
    {"", "--untied --pos rotary --kv-heads 2", "--experts 4", "--experts 4 --capacity 0.75 --aux-loss 0.1",
     "--experts 4 --top-k 1 --untied"},
    {"--dp 1", "--dp 2", "--dp 4"},
    {"--pp 1", "--pp 2", "--pp 4"},
    {"--cp 1", "--cp 2", "--cp 4"},
    {"--tp 1", "--tp 2", "--tp 4"},
    {"", "--sp"},
    {"", "--ep 2", "--ep 4"},
    {"", "--cp-algo allgather", "--cp-algo ulysses"},
    {"", "--schedule gpipe", "--schedule interleaved", "--schedule zero-bubble", "--schedule zero-bubble-2"},
    {"", "--virtual-stages 2"},
    {"", "--zero 1", "--zero 2", "--zero 3", "--fsdp full", "--fsdp grad-op", "--fsdp hybrid"},
    {"--accum 1", "--accum 2", "--accum 4"}};

using Choice = std::array<int, 12>;
bool has(const Choice& c, Question question, int answer = 0) { return c[question] == answer; }
std::string line_of(const Choice& c) {
  std::string line;
  for (size_t i = 0; i < c.size(); ++i)
    if (const std::string& words = kAnswers[i][static_cast<size_t>(c[i])]; !words.empty()) line += words + ' ';
  return line;
}

// Answers without a meaning would fill the cover with layouts that are the same.
bool meaningful(const Choice& c) {
  const bool shards = !has(c, dp) || !has(c, cp);
  return (has(c, way) || !has(c, cp)) && (has(c, schedule) || !has(c, pp)) && (has(c, shard) || shards);
}
int world(const Choice& c) { return 1 << (c[dp] + c[pp] + c[cp] + c[tp]); }
bool legal(const Choice& c) {
  if (world(c) > 8 || !meaningful(c)) return false;
  Options options = parse_line(kBase + line_of(c));
  try {
    complete_options(options, world(c));
  } catch (const Refusal&) {
    return false;
  }
  return true;
}

Choice draw(std::mt19937& random) {
  Choice c{};
  for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<int>(random() % kAnswers[i].size());
  return c;
}

// Pairs of answers have numbers: there are up to 8 answers to each of up to 16 questions.
constexpr size_t kPairs = 16 * 8 * 16 * 8;
std::vector<size_t> pairs_of(const Choice& c) {
  std::vector<size_t> pairs;
  const auto answer = [&](size_t question) { return question * 8 + static_cast<size_t>(c[question]); };
  for (size_t a = 0; a < c.size(); ++a)
    for (size_t b = 0; b < a; ++b) pairs.push_back(answer(a) * 16 * 8 + answer(b));
  return pairs;
}

// Legal layouts that together have every pair of answers that any legal layout of a large sample has.
std::vector<Choice> pairwise() {
  std::mt19937 random(1);
  std::vector<std::pair<Choice, std::vector<size_t>>> sample;
  std::vector<int> open(kPairs);
  for (int i = 0; i < 30000; ++i) {
    const Choice c = draw(random);
    if (!legal(c)) continue;
    sample.emplace_back(c, pairs_of(c));
    for (const size_t pair : sample.back().second) open[pair] = 1;
  }
  std::vector<Choice> cover;
  while (true) {
    int most = 0;
    const std::pair<Choice, std::vector<size_t>>* best = nullptr;
    for (const auto& one : sample) {
      int fresh = 0;
      for (const size_t pair : one.second) fresh += open[pair];
      if (fresh > most) {
        most = fresh;
        best = &one;
      }
    }
    if (best == nullptr) return cover;
    for (const size_t pair : best->second) open[pair] = 0;
    cover.push_back(best->first);
  }
}

// The experts of every token in the order of their logits, by step and layer.
std::vector<std::vector<int>> routing(const Trained& trained) {
  std::vector<std::vector<int>> all;
  const auto folder = lockstep::dump::open_folder(*trained.dump);
  if (!folder) return all;
  for (const auto& [number, files] : folder->steps) {
    const auto step = lockstep::dump::open_step(*folder, number);
    if (!step) continue;
    for (const auto& [name, shards] : step->tensors) {
      if (name.find("mlp.router") == std::string::npos || name.rfind("act/", 0) != 0) continue;
      const auto logits = lockstep::verify::assemble(name, shards);
      EXPECT_TRUE(logits.faults.empty()) << name;
      const int64_t experts = logits.tensor.shape.back();
      std::vector<int>& chosen = all.emplace_back();
      for (int64_t row = 0; row < logits.tensor.elements; row += experts) {
        std::vector<int> order;
        for (int e = 0; e < experts; ++e) order.push_back(e);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
          return value_at(logits.tensor, row + a) > value_at(logits.tensor, row + b);
        });
        chosen.insert(chosen.end(), order.begin(), order.begin() + kTopK);
      }
    }
  }
  return all;
}

// A model's one rank for all layouts of a type.
const Trained& one_rank(const std::string& line) {
  static std::map<std::string, Trained> known;
  auto& trained = known[line];
  if (trained.loss.empty()) trained = train(line + "--dp 1 ");
  return trained;
}

void expect_equal(const std::string& kind, const std::string& layout) {
  SCOPED_TRACE(kind + ' ' + layout);
  const bool experts = kind.find("--experts") != std::string::npos;
  struct Precision {
    const char* dtype;
    double tolerance, early_parameters;
  };
  for (const auto& [dtype, tolerance, early] : {Precision{"fp64", 1e-12, 0}, Precision{"fp32", 1e-5, 1e-4}}) {
    const std::string base = kBase + "--dtype " + dtype + (experts ? " --dump-act transformer.h.*.mlp.router " : " ");
    const Trained& alone = one_rank(base + kind + ' ');
    const Trained spread = train(base + kind + ' ' + layout);
    if (experts) {
      const auto chosen = routing(alone);
      EXPECT_EQ(chosen.size(), 5u * 4u);
      ASSERT_EQ(routing(spread), chosen) << dtype;
    }
    EXPECT_EQ(compare(alone, spread, tolerance, early).difference, "") << dtype;
  }
}
void expect_equal(const Choice& c) {
  Choice layout = c;
  layout[model] = 0;
  expect_equal(kAnswers[model][static_cast<size_t>(c[model])], line_of(layout));
}

// Tied and untied, key/value heads split and shared, experts where they go.
TEST(Cover, EveryModeAloneAtTwoAndFourRanks) {
  const std::string tied, untied = kAnswers[model][1], experts = kAnswers[model][2], capacity = kAnswers[model][3];
  for (const std::string& ranks : {std::string("2 "), std::string("4 ")}) {
    for (const std::string& kind : {tied, untied}) {
      for (const char* more : {"", "--sp "}) expect_equal(kind, "--tp " + ranks + more);
      for (const char* way : {"ring ", "allgather ", "ulysses "})
        if (kind == tied || ranks == "2 " || way != std::string("ulysses "))
          expect_equal(kind, "--cp " + ranks + "--cp-algo " + way);
      for (const char* schedule : {"gpipe ", "1f1b ", "zero-bubble ", "zero-bubble-2 "})
        expect_equal(kind, "--pp " + ranks + "--accum 4 --schedule " + schedule);
    }
    for (const std::string& kind : {experts, capacity}) expect_equal(kind, "--dp " + ranks + "--ep " + ranks);
  }
  expect_equal(tied, "--pp 2 --accum 4 --schedule interleaved --virtual-stages 2 ");
}

// In parts, so that each is done in good time.
constexpr size_t kParts = 4;
class CoverPart : public testing::TestWithParam<size_t> {};

TEST_P(CoverPart, EveryPairOfChoicesInSomeLayout) {
  const std::vector<Choice> cover = pairwise();
  EXPECT_GT(cover.size(), 30u);
  std::printf("%zu layouts in %zu parts\n", cover.size(), kParts);
  for (size_t i = GetParam(); i < cover.size(); i += kParts) expect_equal(cover[i]);
}
INSTANTIATE_TEST_SUITE_P(Cover, CoverPart, testing::Range(size_t{0}, kParts));

TEST(Cover, TenLayoutsDrawnByAPrintedSeed) {
  const char* given = std::getenv("LOCKSTEP_TEST_SEED");
  const auto seed = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  std::printf("LOCKSTEP_TEST_SEED=%u\n", seed);
  SCOPED_TRACE("LOCKSTEP_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (int done = 0; done < 10;) {
    const Choice c = draw(random);
    if (!legal(c)) continue;
    ++done;
    expect_equal(c);
  }
}

TEST(Cover, RoutingThatDiffersIsSeen) {
  const std::string line = kBase + "--dtype fp64 --dump-act transformer.h.*.mlp.router --experts 4 ";
  EXPECT_NE(routing(one_rank(line)), routing(train(line + "--seed 2")));
}

}  // namespace
}  // namespace train::test
