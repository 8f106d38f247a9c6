// SPDX-License-Identifier: MIT
//
// The bubble as a clock sees it: passes that only sleep, so that more stages than processors do not matter. It is how
// much longer a stage takes in the pipeline than by itself, where it makes the same passes and waits for nobody: so
// what a sleep takes beyond its time is no part of it. Of a few tries the shortest count, since other work of the
// machine only ever adds time.

#include <algorithm>
#include <chrono>
#include <mutex>

#include "reference/train/parallel/pipeline.h"
#include "reference/train/parallel/schedule_simulate.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

// Seconds from the moment all stages begin a step until the last has ended it.
double measure(const Schedule& schedule, const FakeCompute& fake) {
  double longest = 0;
  std::mutex mutex;
  run_as_ranks(schedule.stages, [&](const Comm& pp) {
    Memory memory(pp.rank());
    const Stream stream;
    const View token = memory.allocate(Purpose::workspace, Dtype::f64, 1);
    Pipeline pipeline(schedule, pp, stream, memory, Dtype::f64, 1, fake);
    const Passes passes{[&](int, int, int, View) { return token; }, [&](int, int, int, View) { return token; },
                        [&](int, int, int, View) { return token; }, [](int, int, int) {}};
    pp.all_reduce(token, ncclSum, stream);
    stream.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    pipeline.run(passes);
    pp.all_reduce(token, ncclSum, stream);
    stream.synchronize();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    const std::lock_guard lock(mutex);
    longest = std::max(longest, taken.count());
  });
  return longest;
}

using Layout = std::tuple<const char*, int, int, int>;  // schedule, stages, micro-batches, chunks
class Bubble : public testing::TestWithParam<Layout> {};

TEST_P(Bubble, IsThatOfTheFormulaWithinATenth) {
  set_devices(4);
  const auto [name, stages, micro_batches, chunks] = GetParam();
  const Schedule schedule = make_schedule(name, stages, micro_batches, chunks);
  constexpr double kUnit = 0.008;  // seconds of a unit of cost
  const Costs costs{10, 12, 8};
  const FakeCompute fake{costs.forward * kUnit * 1e6, costs.input * kUnit * 1e6, costs.weight * kUnit * 1e6};
  const int64_t passes = micro_batches * chunks;
  const double bubble =
      static_cast<double>(simulate(schedule, costs).makespan - passes * (costs.forward + costs.input + costs.weight)) *
      kUnit;
  Schedule alone = schedule.name.starts_with("zero-bubble") ? zero_bubble(1, static_cast<int>(passes), 1)
                                                            : gpipe(1, static_cast<int>(passes));
  double together = 1e9, work = 1e9, measured = 1e9;
  for (int tries = 0; tries < 12 && std::abs(measured - bubble) > 0.1 * bubble; ++tries) {
    together = std::min(together, measure(schedule, fake));
    work = std::min(work, measure(alone, fake));
    measured = together - work;
  }
  EXPECT_NEAR(measured, bubble, 0.1 * bubble) << name;
  std::printf("%s p=%d m=%d v=%d: bubble %.1f ms, formula %.1f ms\n", name, stages, micro_batches, chunks,
              measured * 1e3, bubble * 1e3);
}
INSTANTIATE_TEST_SUITE_P(Schedules, Bubble,
                         testing::Values(Layout("gpipe", 4, 8, 1), Layout("1f1b", 4, 8, 1), Layout("1f1b", 2, 6, 1),
                                         Layout("interleaved", 2, 4, 2), Layout("interleaved", 4, 8, 2),
                                         Layout("zero-bubble", 4, 8, 1), Layout("zero-bubble-2", 4, 8, 1)));

}  // namespace
}  // namespace train
