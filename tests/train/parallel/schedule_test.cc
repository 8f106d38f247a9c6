// SPDX-License-Identifier: MIT
//
// Schedules against the formulas of their papers: the simulation is exact, so they must be equal, not close.

#include "reference/train/parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "reference/train/parallel/schedule_simulate.h"

namespace train {
namespace {

const std::vector<Costs> kCosts = {{1, 1, 1}, {10, 12, 8}, {7, 9, 4}};

Timing timing_of(const Schedule& schedule, const Costs& costs) {
  std::string stuck;
  const Timing timing = simulate(schedule, costs, &stuck);
  EXPECT_EQ(stuck, "") << schedule.name;
  return timing;
}

void expect_idle(const Schedule& schedule, const Costs& costs, int64_t idle) {
  const Timing timing = timing_of(schedule, costs);
  for (const int64_t stage : timing.idle)
    EXPECT_EQ(stage, idle) << schedule.name << " p=" << schedule.stages << " m=" << schedule.micro_batches
                           << " v=" << schedule.chunks;
}

// Each pass of each micro-batch and chunk once, and in ascending order of micro-batches within a kind and chunk: that
// order is the order in which gradients are added.
void expect_whole(const Schedule& schedule) {
  for (const std::vector<Action>& list : schedule.actions) {
    std::map<std::tuple<Pass, int>, std::vector<int>> seen;
    for (const Action& action : list) seen[{action.pass, action.chunk}].push_back(action.micro_batch);
    std::vector<int> all;
    for (int k = 0; k < schedule.micro_batches; ++k) all.push_back(k);
    const bool split = seen.count({Pass::input, 0}) != 0;
    EXPECT_EQ(seen.size(), static_cast<size_t>(schedule.chunks * (split ? 3 : 2))) << schedule.name;
    for (const auto& [key, order] : seen) EXPECT_EQ(order, all) << schedule.name;
  }
}

TEST(Schedule, GpipeAndOneForwardOneBackwardIdleForOnePassOfTheOtherStages) {
  for (const Costs& c : kCosts)
    for (int p = 1; p <= 8; ++p)
      for (int m = 1; m <= 20; ++m) {
        expect_idle(gpipe(p, m), c, (p - 1) * (c.forward + c.input + c.weight));
        expect_idle(one_forward_one_backward(p, m), c, (p - 1) * (c.forward + c.input + c.weight));
      }
}

TEST(Schedule, GpipeHoldsAllMicroBatchesAndOneForwardOneBackwardNoMoreThanStagesBehind) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 20; ++m) {
      for (const int count : timing_of(gpipe(p, m), {}).in_flight) EXPECT_EQ(count, m);
      const Timing timing = timing_of(one_forward_one_backward(p, m), {});
      for (int rank = 0; rank < p; ++rank)
        EXPECT_EQ(timing.in_flight[static_cast<size_t>(rank)], std::min(m, p - rank));
    }
}

TEST(Schedule, InterleavingDividesTheBubbleByTheChunks) {
  for (const Costs& c : kCosts)  // of one chunk: a stage's pass is v of them
    for (int p = 2; p <= 6; ++p)
      for (int v = 2; v <= 4; ++v)
        for (int m = p; m <= 4 * p; m += p) {
          const Schedule schedule = interleaved(p, m, v);
          expect_idle(schedule, c, (p - 1) * (c.forward + c.input + c.weight));
          const Timing timing = timing_of(schedule, c);
          for (int rank = 0; rank < p; ++rank)
            EXPECT_EQ(timing.in_flight[static_cast<size_t>(rank)],
                      std::min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1));
        }
}

TEST(Schedule, ZeroBubbleOneIdlesForwardAndInputLessWeightAndHoldsAsManyAsStages) {
  for (const Costs& c : kCosts)
    for (int p = 1; p <= 8; ++p)
      for (int m = p; m <= 4 * p; ++m) {
        const Schedule schedule = zero_bubble(p, m, 1);
        expect_idle(schedule, c, (p - 1) * (c.forward + c.input - c.weight));
        for (const int count : timing_of(schedule, c).in_flight) EXPECT_EQ(count, p);
      }
}

TEST(Schedule, ZeroBubbleTwoIdlesOnlyForTheWeightsThatDoNotFill) {
  for (const Costs& c : kCosts)  // the formula is for weight passes no longer than the others
    for (int p = 1; p <= 8; ++p)
      for (int m = 2 * p - 1; m <= 4 * p; ++m) {
        const Timing timing = timing_of(zero_bubble(p, m, 2), c);
        for (int rank = 0; rank < p; ++rank) {
          const auto stage = static_cast<size_t>(rank);
          EXPECT_EQ(timing.window[stage], (p - 1 - rank) * (c.forward + c.input - 2 * c.weight)) << p << " " << m;
          EXPECT_EQ(timing.in_flight[stage], 2 * p - 1);
        }
      }
}

// With fewer micro-batches they run, but idle longer than with many.
TEST(Schedule, ZeroBubblesNeedMicroBatchesToFillThemWith) {
  for (const Costs& c : kCosts)
    for (int p = 2; p <= 8; ++p)
      for (const int warm_up : {1, 2}) {
        const int fill = micro_batches_to_fill(warm_up == 1 ? "zero-bubble" : "zero-bubble-2", p);
        const auto idle = [&](int m) { return timing_of(zero_bubble(p, m, warm_up), c).window.front(); };
        for (int m = fill; m <= 4 * p; ++m) EXPECT_EQ(idle(m), idle(4 * p)) << p << ' ' << m;
        for (int m = 1; m < fill; ++m) EXPECT_GT(idle(m), idle(4 * p)) << p << ' ' << m;
      }
  for (const char* other : {"gpipe", "1f1b", "interleaved"}) EXPECT_EQ(micro_batches_to_fill(other, 8), 1);
}

TEST(Schedule, EveryScheduleMakesEveryPassOnceInTheOrderOfMicroBatchesAndNeverWaitsForItself) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 13; ++m)
      for (const char* name : {"gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-2"})
        for (int v = 1; v <= 3; ++v) {
          if (!schedule_error(name, p, m, v).empty()) continue;
          const Schedule schedule = make_schedule(name, p, m, v);
          EXPECT_EQ(schedule.name, name);
          expect_whole(schedule);
          timing_of(schedule, {3, 5, 2});
        }
}

TEST(Schedule, AScheduleThatWaitsForItselfIsNamed) {
  Schedule schedule = one_forward_one_backward(2, 2);
  std::swap(schedule.actions[0][0], schedule.actions[0][2]);  // backward of 0 before its forward
  std::string stuck;
  EXPECT_EQ(simulate(schedule, {}, &stuck).makespan, 0);
  EXPECT_EQ(stuck, "stage 0 never comes to D0");
  EXPECT_EQ(draw(schedule), "stage 0 never comes to D0\n");
}

TEST(Schedule, RefusalsSayTheRule) {
  EXPECT_EQ(schedule_error("interleaved", 4, 6, 2),
            "--schedule interleaved: micro-batches % pp = 6 % 4 = 2, must be 0");
  EXPECT_EQ(schedule_error("1f1b", 4, 8, 2),
            "--virtual-stages 2 needs --schedule interleaved: 1f1b gives each stage one piece of the model");
  EXPECT_NE(schedule_error("dualpipe", 4, 8, 1), "");
  EXPECT_EQ(schedule_error("zero-bubble-2", 4, 2, 1), "");
}

TEST(Schedule, DrawnOneLineAStage) {
  EXPECT_EQ(draw(one_forward_one_backward(2, 3)),
            "1f1b: 2 stages, 3 micro-batches, 1 chunk a stage\n"
            "stage 0  F0 F1 .  .  D0--- F2 D1--- .  D2---\n"
            "stage 1  .  F0 D0--- F1 D1--- F2 D2--- .  .\n"
            "makespan 12, of it work 9, bubble 3 a stage; inside a stage's own window 3 0; most in flight 2 1\n");
  EXPECT_EQ(draw(interleaved(2, 2, 2)),
            "interleaved: 2 stages, 2 micro-batches, 2 chunks a stage\n"
            "stage 0  F0  F1  F0' F1' .   .   D0'---- .   D1'---- D0----- D1-----\n"
            "stage 1  .   F0  F1  F0' D0'---- F1' D1'---- D0----- D1----- .   .\n"
            "makespan 15, of it work 12, bubble 3 a stage; inside a stage's own window 3 0; most in flight 4 3\n");
}

// Passes of other lengths, in microseconds; what is told is exact, what is drawn is rounded to columns.
TEST(Schedule, DrawnAsLongAsItsPassesTake) {
  EXPECT_EQ(draw(one_forward_one_backward(2, 2), {10000, 12500, 8000}, 0.001),
            "1f1b: 2 stages, 2 micro-batches, 1 chunk a stage; F 10, B 12.5, W 8, a column 10 us\n"
            "stage 0  F0 F1 .  .  D0--- .  D1---\n"
            "stage 1  .  F0 D0--- F1 D1--- .  .\n"
            "makespan 91.5 us, of it work 61, bubble 30.5 a stage; inside a stage's own window 30.5 0; most in flight "
            "2 1\n");
  EXPECT_EQ(draw(gpipe(1, 1), {0, 3, 1}),
            "gpipe: 1 stage, 1 micro-batch, 1 chunk a stage\n"
            "stage 0  D0\n"
            "makespan 4, of it work 4, bubble 0 a stage; inside a stage's own window 0; most in flight 1\n");
  EXPECT_LT(draw(gpipe(2, 2), {1, 1000000000, 1}).size(), 150000u);
}

}  // namespace
}  // namespace train
