// SPDX-License-Identifier: MIT
//
// Many ranks: a hundred collectives of all kinds among 64, and a first one among 256. How fast is bench_host's
// business.

#include <cstdlib>

#include "tests/reference/mixed.h"
#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

void run_mixed(As as, int ranks, int rounds) {
  setenv("LOCKSTEP_HOST_DEVICES", std::to_string(ranks).c_str(), 1);
  run_job(
      as, ranks,
      [&](Rank& me) {
        MixedCollectives collectives(me.rank, me.n);
        EXPECT_TRUE(collectives.run(rounds, me.comm, me.stream));
      },
      milliseconds(200'000));
  unsetenv("LOCKSTEP_HOST_DEVICES");
}

TEST(Scale, SixtyFourThreads) { run_mixed(As::threads, 64, 100); }
TEST(Scale, SixtyFourProcesses) { run_mixed(As::processes, 64, 100); }
TEST(Scale, SixteenProcessesOfTwoThreads) { run_mixed(As::pairs, 32, 50); }
TEST(Scale, TwoHundredAndFiftySixThreads) { run_mixed(As::threads, 256, 1); }

}  // namespace
}  // namespace lockstep::test
