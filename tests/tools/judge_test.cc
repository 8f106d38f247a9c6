// SPDX-License-Identifier: MIT
//
// Ranks that wait: for a call that never came, for a communicator, for a message; and look-alikes that are healthy.

#include "tests/tools/scenes_by_hand.h"

namespace lockstep::test {
namespace {

using abi::Fn;
using trace::CommState;

// --- missing-call
// ------------------------------------------------------------------------------------------------------------

TEST(Judge, MissingCall) {
  check(4,
        [](HandMadeJob& job) {
          job.call_all("world", {}, 2);
          all_but(job, {2});
        },
        {Verdict::hung, Kind::missing_call, {2}, "world", 2, std::vector<int>{0, 1, 3}});
}

TEST(Judge, MissingCallOfTwoRanks) {
  const auto scene = [](HandMadeJob& job) {
    all_but(job, {1});
    job.sits_in(1, "data_loader_next");
  };
  check(2, scene, {Verdict::hung, Kind::missing_call, {1}, "world", 0, std::vector<int>{0}});
}

TEST(Judge, OfTwoRanksNobodyIsNamedWhenNothingTellsWhereTheOtherIs) {
  // It may wait itself, for calls both have made.
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world");
    job.call(0, "world");
    job.wait(kThreshold + 5);
  };
  check(2, scene, {Verdict::hung, Kind::stalled_together, {}, "world", std::nullopt, std::vector<int>{0}});
}

TEST(Judge, MissingCallBelowTheThresholdIsALateRank) {
  check(3, [](HandMadeJob& job) { all_but(job, {1}, kThreshold - 5); },
        {Verdict::healthy, Kind::straggler, {}, "world", 0, std::nullopt});
}

TEST(Judge, LateCallThatCameIsHealthy) {
  check(3,
        [](HandMadeJob& job) {
          all_but(job, {1});
          job.call(1, "world");
          job.wait(1);
        },
        {});
}

TEST(Judge, VictimsMayHaveLaunchedFarAhead) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world", {}, 5);
    for (int i = 0; i < 120; i++) job.call(0, "world"), job.call(1, "world");
    job.wait(kThreshold + 1);
    job.sits_in(2, "data_loader_next");
  };
  check(3, scene, {Verdict::hung, Kind::missing_call, {2}, "world", 5, std::vector<int>{0, 1}});
}

TEST(Judge, ARankThatWaitsElsewhereIsAVictim) {
  // The trainers wait for rank 0, which waits on another communicator for rank 2.
  const auto scene = [](HandMadeJob& job) {
    job.comm("fsdp", {0, 1});
    job.comm("sync", {0, 2});
    job.call_all("fsdp", {Fn::AllGather});
    job.call(0, "sync", {Fn::Broadcast, 1024, 7, 0, 0});
    job.call(1, "fsdp", {Fn::AllGather});
    job.wait(kThreshold + 5);
    job.sits_in(0, "cudaStreamSynchronize");
    job.sits_in(1, "cudaStreamSynchronize");
    job.sits_in(2, "start_actor");
  };
  check(3, scene, {Verdict::hung, Kind::missing_call, {2}, "sync", 0, std::vector<int>{0, 1}});
}

TEST(Judge, ARankThatOnlyEnqueuedElsewhereAndWentOnIsTheCulprit) {
  // Rank 0 has an operation pending that rank 2 has not joined, but its stack is in its own code.
  const auto scene = [](HandMadeJob& job) {
    job.comm("fsdp", {0, 1});
    job.comm("sync", {0, 2});
    job.wait(kThreshold);
    job.call(1, "fsdp", {Fn::AllGather});
    job.wait(kThreshold + 5);
    job.call(0, "sync");
    job.wait(kThreshold);
    job.sits_in(0, "data_loader_next");
    job.sits_in(2, "compute");
  };
  check(3, scene, {Verdict::hung, Kind::missing_call, {0}, "fsdp", 0, std::vector<int>{1}});
}

TEST(Judge, OneCulpritMissedOnTwoCommunicatorsIsOneFinding) {
  const auto scene = [](HandMadeJob& job) {
    job.comm("tp", {2, 3});
    job.comm("dp", {1, 3});
    job.call(2, "tp");
    job.wait(1);
    job.call(1, "dp");
    job.wait(kThreshold + 5);
    job.sits_in(3, "data_loader_next");
  };
  check(4, scene, {Verdict::hung, Kind::missing_call, {3}, "tp", 0, std::vector<int>{1, 2}});
}

TEST(Judge, AWaitInACircleNamesNobody) {
  const auto scene = [](HandMadeJob& job) {
    job.comm("a", {0, 1});
    job.comm("b", {0, 1});
    job.call(0, "a");
    job.call(1, "b");
    job.wait(kThreshold + 5);
    job.sits_in(0, "cudaStreamSynchronize");
    job.sits_in(1, "cudaStreamSynchronize");
  };
  check(2, scene, {Verdict::hung, Kind::order_inversion, {}, "", std::nullopt, std::vector<int>{0, 1}});
}

TEST(Judge, ACallInAGroupThatIsNeverClosedIsNotLaunched) {
  const auto scene = [](HandMadeJob& job) {
    job.call(0, "world", {Fn::AllReduce, 1024, 7, 0, -1, true, 0, 9});
    all_but(job, {0});
  };
  check(3, scene, {Verdict::hung, Kind::missing_call, {0}, "world", 0, std::vector<int>{1, 2}});
}

TEST(Judge, AFailedCallTakesNoNumber) {
  const auto scene = [](HandMadeJob& job) {
    job.call(1, "world", {Fn::AllReduce, 1024, 7, 0, -1, true, 5});
    job.call_all("world", {}, 2);
  };
  check(3, scene, {});
}

TEST(Judge, AWrappedRingStillKnowsWhoIsMissing) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world", {}, 50);
    all_but(job, {1});
    job.wrap(0, 2);
    job.wrap(1, 5);
    job.wrap(2, 0);
  };
  check(3, scene, {Verdict::hung, Kind::missing_call, {1}, "world", 50, std::vector<int>{0, 2}});
}

// --- making communicators
// -------------------------------------------------------------------------------------------------

TEST(Judge, InitIncomplete) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world");
    job.comm("sync", {0, 1}, CommState::initialising, 3);
    job.wait(kThreshold + 5);
    job.sits_in(2, "start_actor");
  };
  check(3, scene, {Verdict::hung, Kind::init_incomplete, {2}, "sync", std::nullopt, std::vector<int>{0, 1}});
}

TEST(Judge, InitOfAPairBesideAnother) {
  // {0,1} is made, {2,3} waits for rank 3: the members of its sibling are not suspects.
  const auto scene = [](HandMadeJob& job) {
    job.comm("tp0", {0, 1});
    job.comm("tp1", {2}, CommState::initialising, 2);
    job.wait(kThreshold + 5);
    job.sits_in(3, "start_actor");
  };
  check(4, scene, {Verdict::hung, Kind::init_incomplete, {3}, "tp1", std::nullopt, std::vector<int>{2}});
}

TEST(Judge, InitThatCouldMissAnybodyNamesNobody) {
  const auto scene = [](HandMadeJob& job) {
    job.comm("pair", {0}, CommState::initialising, 2);
    job.wait(kThreshold + 5);
  };
  check(4, scene, {Verdict::hung, Kind::init_incomplete, {}, "pair", std::nullopt, std::vector<int>{0}});
}

TEST(Judge, AYoungInitIsHealthy) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world");
    job.comm("sync", {0, 1}, CommState::initialising, 3);
    job.wait(2);
  };
  check(3, scene, {});
}

// --- holes in the evidence, and quiet
// --------------------------------------------------------------------------------------

TEST(Judge, AMissingTraceIsNotHealthy) {
  check(3,
        [](HandMadeJob& job) {
          job.call_all("world");
          job.lose_trace(1);
        },
        {Verdict::unknown, Kind::missing_trace, {}, "", std::nullopt, std::nullopt});
}

TEST(Judge, AMissingTraceBlamesNobodyPresent) {
  const auto scene = [](HandMadeJob& job) {
    all_but(job, {1});
    for (const int rank : {0, 2}) job.sits_in(rank, "cudaStreamSynchronize");
    job.lose_trace(1);
  };
  check(3, scene, {Verdict::unknown, Kind::missing_trace, {1}, "world", 0, std::vector<int>{0, 2}});
}

TEST(Judge, AMissingVictimLowersConfidenceOnly) {
  HandMadeJob job(4, {0, 1, 2, 3});
  job.comm("world", {0, 1, 2, 3});
  all_but(job, {2});
  job.lose_trace(0);
  const Judged judged = judge_job(job);
  EXPECT_EQ(judged.first().kind, Kind::missing_call);
  EXPECT_EQ(judged.culprits(), std::vector<int>{2});
  EXPECT_EQ(judged.first().confidence, Confidence::likely);
  EXPECT_EQ(judged.diagnosis.findings.back().kind, Kind::missing_trace);
  EXPECT_EQ(judged.diagnosis.findings.back().severity, Severity::warning);
}

TEST(Judge, AllInTheSameCallNamesNobody) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world", {Fn::AllReduce, 1024, 7, 0, -1, false});
    job.wait(kThreshold + 5);
  };
  check(4, scene, {Verdict::unknown, Kind::stalled_together, {}, "world", 0, std::vector<int>{0, 1, 2, 3}});
}

TEST(Judge, IdleIsHealthy) {
  check(2,
        [](HandMadeJob& job) {
          job.call_all("world");
          job.wait(10 * kThreshold);
          for (const int rank : {0, 1}) job.sits_in(rank, "idle_loop");
        },
        {Verdict::healthy, Kind::idle, {}, "", std::nullopt, std::nullopt});
}

TEST(Judge, DroppedEventsForbidHealthy) {
  HandMadeJob job(2, {0, 1});
  job.comm("world", {0, 1});
  job.call_all("world");
  job.file(0).dropped = 3;
  EXPECT_EQ(judge_job(job).diagnosis.verdict, Verdict::unknown);
}

TEST(Judge, WithoutACommunicatorNothingIsKnown) {
  HandMadeJob job(2, {0, 1});
  EXPECT_EQ(judge_job(job).diagnosis.verdict, Verdict::unknown);
}

TEST(Judge, CleanEndIsHealthy) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world", {}, 3);
    for (int rank = 0; rank < job.size(); rank++) {
      job.teardown(rank, "world", CommState::destroyed);
      job.exits(rank, 0);
      job.wait(0.1);
    }
  };
  check(3, scene, {});
}

// --- point to point
// --------------------------------------------------------------------------------------------------------

TEST(Judge, PipelinesWithDifferentNumbersOfCallsAreHealthy) {
  const auto scene = [](HandMadeJob& job) {
    job.comm("pp", {0, 1, 2});
    const auto at = [&](int rank) { return job.info(rank, "pp").rank; };
    for (int i = 0; i < 3; i++) {
      job.call(0, "pp", {Fn::Send, 64, 7, 0, at(1)});
      job.call(1, "pp", {Fn::Recv, 64, 7, 0, at(0)});
      job.call(1, "pp", {Fn::Send, 64, 7, 0, at(2)});
      job.call(2, "pp", {Fn::Recv, 64, 7, 0, at(1)});
    }
    job.wait(1);
  };
  check(3, scene, {});
}

TEST(Judge, QuietAfterPointToPointIsNotCalledHealthy) {
  HandMadeJob job(2, {0, 1});
  job.comm("world", {0, 1});
  job.call(0, "world", {Fn::Send, 64, 7, 0, 1});
  job.call(1, "world", {Fn::Recv, 64, 7, 0, 0});
  job.wait(kThreshold + 5);
  EXPECT_EQ(judge_job(job).diagnosis.verdict, Verdict::unknown);
}

TEST(Judge, ASendThatNobodyReceives) {
  const auto scene = [](HandMadeJob& job) {
    const auto at = [&](int rank) { return job.info(rank, "world").rank; };
    job.call(0, "world", {Fn::Send, 64, 7, 0, at(1)});
    job.wait(kThreshold + 5);
    job.sits_in(1, "exchange_shapes");
  };
  check(3, scene, {Verdict::hung, Kind::p2p_unmatched, {1}, "world", std::nullopt, std::vector<int>{0}});
}

}  // namespace
}  // namespace lockstep::test
