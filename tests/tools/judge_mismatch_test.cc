// SPDX-License-Identifier: MIT
//
// Ranks that called different things: who is odd, what a tie is, and what only looks like a mismatch.

#include "tests/tools/scenes_by_hand.h"

namespace lockstep::test {
namespace {

using abi::Fn;

TEST(Judge, MismatchesByMajority) {
  const CallSpec usual{Fn::Reduce, 1024, 7, 0, 0};
  const std::pair<Kind, CallSpec> odd_calls[] = {
      {Kind::op_mismatch, {Fn::AllGather, 1024, 7, 0, -1}}, {Kind::count_mismatch, {Fn::Reduce, 1025, 7, 0, 0}},
      {Kind::dtype_mismatch, {Fn::Reduce, 1024, 8, 0, 0}},  {Kind::redop_mismatch, {Fn::Reduce, 1024, 7, 2, 0}},
      {Kind::root_mismatch, {Fn::Reduce, 1024, 7, 0, 1}},
  };
  for (const auto& [kind, odd] : odd_calls) {
    const CallSpec spec = odd;
    const auto scene = [&](HandMadeJob& job) {
      job.call_all("world");
      for (int rank = 0; rank < 4; rank++) job.call(rank, "world", rank == 2 ? spec : usual);
      job.call_all("world", {}, 2);
    };
    check(4, scene, {Verdict::mismatch, kind, {2}, "world", 1, std::vector<int>{0, 1, 3}});
  }
}

TEST(Judge, ATieNamesNobody) {
  const auto scene = [](HandMadeJob& job) {
    for (int rank = 0; rank < 4; rank++) job.call(rank, "world", {Fn::AllReduce, rank < 2 ? 1025u : 262144u});
  };
  check(4, scene, {Verdict::mismatch, Kind::count_mismatch, {}, "world", 0, std::vector<int>{0, 1, 2, 3}});
}

TEST(Judge, TheFirstMismatchIsReportedEvenWhenItCompleted) {
  const auto scene = [](HandMadeJob& job) {
    for (int rank = 0; rank < 3; rank++) job.call(rank, "world", {Fn::AllReduce, rank == 1 ? 1002u : 1000u});
    job.call_all("world", {}, 3);
    for (int rank = 0; rank < 3; rank++) job.call(rank, "world", {Fn::AllReduce, rank == 0 ? 7u : 8u});
    all_but(job, {2});
  };
  check(3, scene, {Verdict::hung, Kind::count_mismatch, {1}, "world", 0, std::nullopt});
}

TEST(Judge, BcastIsBroadcast) {
  const auto scene = [](HandMadeJob& job) {
    for (int rank = 0; rank < 3; rank++) job.call(rank, "world", {rank == 1 ? Fn::Bcast : Fn::Broadcast, 64, 7, 0, 2});
  };
  check(3, scene, {});
}

TEST(Judge, OperatorsMadeAtRunTimeAreAllAlike) {
  const auto scene = [](HandMadeJob& job) {
    for (int rank = 0; rank < 3; rank++) job.call(rank, "world", {Fn::AllReduce, 64, 7, 1000 + rank});
  };
  check(3, scene, {});
}

TEST(Judge, CountZeroWhereOthersPassMore) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world");
    for (int rank = 0; rank < 3; rank++) job.call(rank, "world", {Fn::AllReduce, rank == 1 ? 0u : 1024u});
    job.call_all("world");
    job.wait(kThreshold + 5);
  };
  check(3, scene, {Verdict::hung, Kind::count_mismatch, {1}, "world", 1, std::vector<int>{0, 2}});
}

TEST(Judge, CountZeroByAllOrBesideIsHealthy) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world", {Fn::AllReduce, 0});
    job.call(1, "world", {Fn::AllGather, 0});
    job.call_all("world", {}, 3);
  };
  check(3, scene, {});
}

TEST(Judge, AMismatchBeforeTheRingWrappedIsNotInvented) {
  const auto scene = [](HandMadeJob& job) {
    for (int rank = 0; rank < 3; rank++) job.call(rank, "world", {Fn::AllReduce, rank == 1 ? 1002u : 1000u});
    job.call_all("world", {}, 30);
    job.wrap(0, 10);
    job.wrap(1, 10);
    job.wrap(2, 10);
  };
  check(3, scene, {});
}

}  // namespace
}  // namespace lockstep::test
