// SPDX-License-Identifier: MIT
//
// Digests from end to end: a job on the host runtime whose result one rank gets wrong by one bit, recorded with
// LOCKSTEP_DIGEST=1 and judged from its traces alone; and the same job without the mistake.

#include <gtest/gtest.h>

#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {
namespace {

// The scene's own `expect` line is compared by `lockstep scenario`.
Outcome play(const std::string& settings, const std::string& expected) {
  trace::TempFolder folder;
  const std::string path = folder.path() + "/digests.hang";
  trace::spill(path, "title: results are compared by their digests\nranks: 3\nhang-seconds: 20\ndeadline: 100\nenv: LOCKSTEP_DIGEST=1\n" + settings +
                         "each: repeat 5 { step; allreduce world 1024; sync }\nexpect: " + expected + "\n");
  return run({LOCKSTEP_PROGRAM, "scenario", path}, {}, 110);
}

TEST(Digests, NameTheRankWhoseResultDiffers) {
  const Outcome outcome = play("env: LOCKSTEP_HOST_FAULT=corrupt:rank=1,call=3,element=5\n",
                               "status mismatch; kind result-divergence; culprits 1; comm world; seq 2; op AllReduce");
  EXPECT_TRUE(outcome.exited_with(0)) << outcome.out << outcome.err;
}

TEST(Digests, SayNothingWhenResultsAgree) {
  const Outcome outcome = play("", "status healthy; kind none");
  EXPECT_TRUE(outcome.exited_with(0)) << outcome.out << outcome.err;
}

}  // namespace
}  // namespace lockstep
