// SPDX-License-Identifier: MIT
//
// Which token goes to which expert, by itself: capacity and loads go by whole sequences, however their tokens lie on
// ranks.

#include "reference/train/parallel/expert.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "reference/train/kernels/experts.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

constexpr int64_t kSequences = 3, kLength = 8, kExperts = 4, kTopK = 2;

// Token `place` of a sequence chooses these.
int32_t choice(int64_t sequence, int64_t place, int64_t j) {
  const auto first = static_cast<int32_t>(std::mt19937(static_cast<unsigned>(sequence * 100 + place))() % 3);
  return j == 0 ? first : first + 1;
}

// As ranks see them whose tokens are `places` of every sequence.
Choices choices_of(const std::vector<std::vector<int64_t>>& places, size_t rank) {
  Choices c;
  c.sequences = kSequences;
  c.part = static_cast<int64_t>(places[0].size());
  c.count = kSequences * c.part;
  c.first = static_cast<int64_t>(rank) * c.count;
  for (const std::vector<int64_t>& part : places)
    for (int64_t sequence = 0; sequence < kSequences; ++sequence)
      for (const int64_t place : part) {
        c.order.push_back(static_cast<int32_t>(place));
        for (int64_t j = 0; j < kTopK; ++j) c.experts.push_back(choice(sequence, place, j));
      }
  return c;
}

std::vector<int64_t> all_places() {
  std::vector<int64_t> places(kLength);
  std::iota(places.begin(), places.end(), 0);
  return places;
}

TEST(ExpertPlan, WithoutCapacityEveryChoiceIsServedInTheOrderOfExperts) {
  const ExpertPlan plan = plan_experts(choices_of({all_places()}, 0), kExperts, kTopK, 0, kLength);
  EXPECT_EQ(plan.total_sent(), kSequences * kLength * kTopK);
  for (int64_t token = 0; token < kSequences * kLength; ++token)
    for (int64_t j = 0; j < kTopK; ++j) {
      const int32_t slot = plan.slots[static_cast<size_t>(token * kTopK + j)];
      ASSERT_GE(slot, 0);
      EXPECT_EQ(plan.rows[static_cast<size_t>(slot)], token);
      int64_t begin = 0;
      const int32_t expert = choice(token / kLength, token % kLength, j);
      for (int32_t e = 0; e < expert; ++e) begin += plan.sent[static_cast<size_t>(e)];
      EXPECT_GE(slot, begin);
      EXPECT_LT(slot, begin + plan.sent[static_cast<size_t>(expert)]);
    }
}

TEST(ExpertPlan, CapacityServesFirstChoicesThenEarlyTokens) {
  const ExpertPlan plan = plan_experts(choices_of({all_places()}, 0), kExperts, kTopK, 0.5, kLength);
  const int64_t most = 2;  // 0.5 * 2 * 8 / 4
  int64_t dropped = 0;
  for (int64_t sequence = 0; sequence < kSequences; ++sequence) {
    std::vector<int64_t> taken(kExperts);
    for (int64_t j = 0; j < kTopK; ++j)
      for (int64_t place = 0; place < kLength; ++place) {
        const bool served = taken[static_cast<size_t>(choice(sequence, place, j))]++ < most;
        const int32_t slot = plan.slots[static_cast<size_t>((sequence * kLength + place) * kTopK + j)];
        EXPECT_EQ(slot >= 0, served) << sequence << " " << place << " " << j;
        dropped += served ? 0 : 1;
      }
  }
  EXPECT_GT(dropped, 5);
}

TEST(ExpertPlan, WhoHasTheTokensDecidesNothing) {
  const std::vector<std::vector<int64_t>> split = {{0, 1, 6, 7}, {2, 3, 4, 5}};
  const ExpertPlan whole = plan_experts(choices_of({all_places()}, 0), kExperts, kTopK, 0.75, kLength);
  for (size_t rank = 0; rank < 2; ++rank) {
    const ExpertPlan part = plan_experts(choices_of(split, rank), kExperts, kTopK, 0.75, kLength);
    EXPECT_EQ(part.loads, whole.loads);
    for (int64_t sequence = 0; sequence < kSequences; ++sequence)
      for (size_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < kTopK; ++j) {
          const auto here = static_cast<size_t>((sequence * 4 + static_cast<int64_t>(i)) * kTopK + j);
          const auto there = static_cast<size_t>((sequence * kLength + split[rank][i]) * kTopK + j);
          EXPECT_EQ(part.slots[here] >= 0, whole.slots[there] >= 0);
        }
  }
}

TEST(Route, TheLargestFirstAndOfEqualOnesTheLowerNumber) {
  set_devices(4);
  run_as_ranks(1, [](const Comm&) {
    Memory memory(0);
    const Stream stream;
    const View logits = device_view(memory, {0, 1, 2, 5, 4, 3, 2, 2, 2, -1, 7, 7});  // four rows of three
    const View p = memory.allocate(Purpose::workspace, Dtype::f64, 12);
    for (const int64_t top_k : {1, 2}) {
      const View gates = memory.allocate(Purpose::workspace, Dtype::f64, 4 * top_k);
      int32_t* choices = device_copy(memory, std::vector<int32_t>(static_cast<size_t>(4 * top_k)));
      route(stream.get(), p, gates, choices, logits, 4, 3, top_k);
      const auto chosen = host_copy<int32_t>(stream, choices, 4 * top_k);
      EXPECT_EQ(chosen,
                top_k == 1 ? (std::vector<int32_t>{2, 0, 0, 1}) : (std::vector<int32_t>{2, 1, 0, 1, 0, 1, 1, 2}));
      const std::vector<double> gate = numbers(stream, gates);
      const double e = std::exp(1.0);
      EXPECT_NEAR(gate[0], top_k == 1 ? e * e / (1 + e + e * e) : e / (e + 1), 1e-15);
      if (top_k == 2) {
        EXPECT_NEAR(gate[0] + gate[1], 1, 1e-15);
      }
    }
  });
}

// The loss by its definition: for each sequence aux * E * sum over experts of f P, f the share of choices, which has no
// slope, and P the mean probability, times the sequence's length. Differences of it against the kernel's gradient.
TEST(Route, BalanceGradientIsTheLossesSlope) {
  set_devices(4);
  run_as_ranks(1, [](const Comm&) {
    Memory memory(0);
    const Stream stream;
    constexpr int64_t rows = 2 * kLength;  // two sequences
    constexpr double kAux = 0.3;
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::vector<double> logits(rows * kExperts);
    for (double& x : logits) x = normal(random);
    for (const int64_t top_k : {1, 2}) {
      const View p = memory.allocate(Purpose::workspace, Dtype::f64, rows * kExperts);
      const View gates = memory.allocate(Purpose::workspace, Dtype::f64, rows * top_k);
      int32_t* choices = device_copy(memory, std::vector<int32_t>(static_cast<size_t>(rows * top_k)));
      route(stream.get(), p, gates, choices, device_view(memory, logits), rows, kExperts, top_k);
      std::vector<int32_t> loads(2 * kExperts);
      const auto chosen = host_copy<int32_t>(stream, choices, rows * top_k);
      for (int64_t i = 0; i < rows * top_k; ++i)
        ++loads[static_cast<size_t>(i / top_k / kLength * kExperts + chosen[static_cast<size_t>(i)])];
      const View got = memory.allocate(Purpose::workspace, Dtype::f64, rows * kExperts);
      const View none = memory.allocate(Purpose::workspace, Dtype::f64, rows * top_k);
      route_backward(stream.get(), got, none, p, gates, choices, device_copy(memory, loads),
                     kAux * kExperts / static_cast<double>(kLength * top_k), rows, kExperts, top_k, 0, kLength);
      const std::vector<double> gradient = numbers(stream, got);
      const auto loss = [&](const std::vector<double>& at) {
        double sum = 0;
        for (int64_t row = 0; row < rows; ++row) {
          double total = 0;
          for (int64_t e = 0; e < kExperts; ++e) total += std::exp(at[static_cast<size_t>(row * kExperts + e)]);
          for (int64_t e = 0; e < kExperts; ++e) {
            const double share =
                loads[static_cast<size_t>(row / kLength * kExperts + e)] / static_cast<double>(kLength * top_k);
            sum += kAux * kExperts * share * std::exp(at[static_cast<size_t>(row * kExperts + e)]) / total;
          }
        }
        return sum;
      };
      for (size_t i = 0; i < logits.size(); ++i) {
        std::vector<double> up = logits, down = logits;
        up[i] += 1e-5;
        down[i] -= 1e-5;
        EXPECT_NEAR(gradient[i], (loss(up) - loss(down)) / 2e-5, 1e-9) << top_k << ' ' << i;
      }
      EXPECT_GT(std::abs(*std::max_element(gradient.begin(), gradient.end())), 1e-3);
    }
  });
}

// A row is its number and where it is going; what comes back is what was sent.
TEST(ExpertExchange, RowsReachTheirExpertsAndComeBack) {
  set_devices(4);
  run_as_ranks(4, [](const Comm& ep) {
    Memory memory(ep.rank());
    const Stream stream;
    Arena arena(memory, Purpose::workspace);
    Choices c = choices_of({all_places()}, 0);
    for (int32_t& expert : c.experts) expert = (expert + ep.rank() * ep.rank()) % kExperts;  // each rank its own
    if (ep.rank() == 2) std::fill(c.experts.begin(), c.experts.end(), 1);  // some send nothing to some
    ExpertPlan plan = plan_experts(c, kExperts, kTopK, 0, kLength);
    exchange_counts(plan, ep, stream, arena);
    std::vector<double> rows;
    for (int64_t expert = 0; expert < kExperts; ++expert)
      for (int64_t i = 0; i < plan.sent[static_cast<size_t>(expert)]; ++i)
        rows.push_back(static_cast<double>(ep.rank() * 1000 + expert));
    const View sent = device_view(memory, rows);
    const View arrived = arena.take(Dtype::f64, plan.total_arrived()), back = arena.take(Dtype::f64, sent.size);
    to_experts(plan, ep, stream, sent, arrived, 1);
    const std::vector<double> got = numbers(stream, arrived);
    size_t at = 0;
    for (int64_t peer = 0; peer < 4; ++peer)
      for (int64_t i = 0; i < plan.arrived[static_cast<size_t>(peer)]; ++i)
        EXPECT_EQ(got[at++], static_cast<double>(peer * 1000 + ep.rank()));
    EXPECT_EQ(at, got.size());
    from_experts(plan, ep, stream, arrived, back, 1);
    EXPECT_EQ(numbers(stream, back), rows);
  });
}

}  // namespace
}  // namespace train
