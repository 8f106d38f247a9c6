// SPDX-License-Identifier: MIT
//
// Modes together, with every way of sharding over data-parallel ranks, against one rank: a pairwise cover of what can
// be chosen, and some layouts that nobody chose.

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "reference/train/parallel/schedule.h"
#include "tests/train/parallel/job.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

[[maybe_unused]] const bool kDevices = [] {
  set_devices(64);
  return true;
}();

// Why a layout cannot be; nothing if it can.
bool legal(const Layout& layout, const Config& config) {
  const Shape& s = layout.shape;
  if (s.world() > 8 || s.dp * layout.micro_batches > kSequences) return false;
  if (s.pp == 1 && layout.schedule.starts_with("zero-bubble")) return false;
  if (layout.chunks > 1 && (s.pp == 1 || layout.schedule != "interleaved")) return false;
  if (config.layers % (s.pp * layout.chunks) != 0) return false;
  if (!schedule_error(layout.schedule, s.pp, layout.micro_batches, layout.chunks).empty()) return false;
  if (layout.sequence && s.tp == 1) return false;
  return layout.context != ContextWay::ulysses || config.key_value_heads() % (s.cp * s.tp) == 0;
}

// A choice for each question: a layout.
const std::vector<std::vector<int>> kChoices = {{1, 2, 4}, {1, 2, 4},       {1, 2, 4}, {1, 2, 4},    {0, 1},
                                                {0, 1, 2}, {0, 1, 2, 3, 4}, {1, 2},    {0, 1, 2, 3}, {2, 4}};
Layout layout_from(const std::vector<int>& c) {
  Layout layout = layout_of(c[0], c[1], c[2], c[3]);
  layout.sequence = c[4] == 1;
  layout.context = static_cast<ContextWay>(c[5]);
  layout.schedule = std::vector<std::string>{"gpipe", "1f1b", "interleaved", "zero-bubble",
                                             "zero-bubble-2"}[static_cast<size_t>(c[6])];
  layout.chunks = c[7];
  layout.shard = std::vector<std::string>{"none", "zero1", "zero2", "full"}[static_cast<size_t>(c[8])];
  layout.micro_batches = c[9];
  return layout;
}

std::vector<int> draw(std::mt19937& random) {
  std::vector<int> choice;
  for (const std::vector<int>& values : kChoices) choice.push_back(values[random() % values.size()]);
  return choice;
}

// Legal layouts that together have every pair of answers that any legal layout of a large sample has.
std::vector<Layout> pairwise(const Config& config) {
  std::mt19937 random(1);
  using Pair = std::array<int, 4>;
  std::vector<std::pair<std::vector<int>, std::set<Pair>>> sample;
  std::set<Pair> open;
  for (int i = 0; i < 200000 && sample.size() < 4000; ++i) {
    const std::vector<int> c = draw(random);
    if (!legal(layout_from(c), config)) continue;
    std::set<Pair> pairs;
    for (int a = 0; a < static_cast<int>(c.size()); ++a)
      for (int b = 0; b < a; ++b) pairs.insert({a, c[static_cast<size_t>(a)], b, c[static_cast<size_t>(b)]});
    open.insert(pairs.begin(), pairs.end());
    sample.emplace_back(c, pairs);
  }
  std::vector<Layout> cover;
  while (!open.empty()) {
    size_t most = 0, best = 0;
    for (size_t i = 0; i < sample.size(); ++i) {
      const auto count = static_cast<size_t>(std::count_if(sample[i].second.begin(), sample[i].second.end(),
                                                           [&](const Pair& pair) { return open.count(pair) > 0; }));
      if (count > most) {
        most = count;
        best = i;
      }
    }
    for (const Pair& pair : sample[best].second) open.erase(pair);
    cover.push_back(layout_from(sample[best].first));
  }
  return cover;
}

TEST(Combinations, SixtyFourRanks) {
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

TEST(Combinations, EveryPairOfChoicesInSomeLayout) {
  const std::vector<Layout> layouts = pairwise(kTied.config);
  EXPECT_GT(layouts.size(), 15);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name());
    expect_equal("tied", kTied, layout);
  }
  std::printf("%zu layouts\n", layouts.size());
}

TEST(Combinations, TenLayoutsDrawnByAPrintedSeed) {
  const char* given = std::getenv("LOCKSTEP_TEST_SEED");
  const auto seed = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  std::printf("LOCKSTEP_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);
  for (int done = 0; done < 10;) {
    const Layout layout = layout_from(draw(random));
    if (!legal(layout, kRotary.config)) continue;
    ++done;
    SCOPED_TRACE(layout.name() + " LOCKSTEP_TEST_SEED=" + std::to_string(seed));
    expect_equal("rotary", kRotary, layout);
  }
}

}  // namespace
}  // namespace train
