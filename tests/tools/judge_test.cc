// SPDX-License-Identifier: MIT
//
// Every verdict, and every look-alike that must not get it, on jobs made by hand. Each scene is played under several
// numberings of its ranks and with some agreed calls in front; the verdict must follow.

#include <gtest/gtest.h>
#include <signal.h>

#include <functional>

#include "tests/tools/hand_made.h"

namespace lockstep::test {
namespace {

using abi::Fn;
using trace::CommState;
using Scene = std::function<void(HandMadeJob&)>;

struct Expected {
  Verdict verdict = Verdict::healthy;
  std::optional<Kind> kind;   // none = no findings
  std::vector<int> culprits;  // as the scene numbers them
  std::string comm;
  std::optional<uint64_t> seq;  // before the shift
  std::optional<std::vector<int>> victims;
};

constexpr int kShift = 3;

// `shift` agreed calls come first on the world communicator.
void check(int ranks, const Scene& scene, const Expected& expected) {
  for (const std::vector<int>& numbers : numberings(ranks))
    for (const int shift : {0, kShift}) {
      HandMadeJob job(ranks, numbers);
      std::vector<int> all(static_cast<size_t>(ranks));
      for (int rank = 0; rank < ranks; rank++) all[static_cast<size_t>(rank)] = rank;
      job.comm("world", all);
      job.call_all("world", {}, shift);
      scene(job);
      const Judged judged = judge_job(job);
      const Diagnosis& diagnosis = judged.diagnosis;
      std::string what = "shift " + std::to_string(shift) + ", numbers";
      for (const int number : numbers) what += " " + std::to_string(number);
      SCOPED_TRACE(what + "; " + (diagnosis.findings.empty() ? "no finding" : judged.first().summary));
      EXPECT_STREQ(verdict_name(diagnosis.verdict), verdict_name(expected.verdict));
      ASSERT_EQ(diagnosis.findings.empty(), !expected.kind.has_value());
      if (!expected.kind) continue;
      EXPECT_STREQ(kind_name(judged.first().kind), kind_name(*expected.kind));
      EXPECT_EQ(judged.culprits(), job.numbers(expected.culprits));
      if (!expected.comm.empty()) {
        EXPECT_EQ(judged.comm(), expected.comm);
      }
      if (expected.seq) {
        const uint64_t wanted = *expected.seq + (expected.comm == "world" ? static_cast<uint64_t>(shift) : 0);
        ASSERT_TRUE(judged.first().seq.has_value());
        EXPECT_EQ(*judged.first().seq, wanted);
      }
      if (expected.victims) {
        EXPECT_EQ(judged.victims(), job.numbers(*expected.victims));
      }
    }
}

// All but `absent` make one more call, and wait long.
void all_but(HandMadeJob& job, const std::vector<int>& absent, double seconds = kThreshold + 5) {
  for (int rank = 0; rank < job.size(); rank++)
    if (std::find(absent.begin(), absent.end(), rank) == absent.end()) job.call(rank, "world");
  job.wait(seconds);
  for (const int rank : absent) job.sits_in(rank, "data_loader_next");
}

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

// --- left-early, died
// --------------------------------------------------------------------------------------------------------

TEST(Judge, LeftEarlyByACleanExit) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world", {}, 2);
    job.exits(2, 0);
    job.call(0, "world"), job.call(1, "world");
    job.wait(5);
  };
  check(3, scene, {Verdict::hung, Kind::left_early, {2}, "world", 2, std::vector<int>{0, 1}});
}

TEST(Judge, LeftEarlyByDestroyingTheCommunicator) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world");
    job.teardown(0, "world", CommState::destroyed);
    all_but(job, {0});
  };
  check(3, scene, {Verdict::hung, Kind::left_early, {0}, "world", 1, std::vector<int>{1, 2}});
}

TEST(Judge, DiedBeforeTheCall) {
  for (const int signal : {SIGSEGV, SIGABRT, SIGKILL, SIGTERM}) {
    const auto scene = [&](HandMadeJob& job) {
      job.call_all("world", {}, 2);
      job.dies(1, signal);
      all_but(job, {1});
    };
    check(3, scene, {Verdict::failed, Kind::died, {1}, "world", 2, std::vector<int>{0, 2}});
  }
}

TEST(Judge, ExitStatusThreeIsADeath) {
  check(3,
        [](HandMadeJob& job) {
          job.exits(0, 3);
          all_but(job, {0});
        },
        {Verdict::failed, Kind::died, {0}, "world", 0, std::nullopt});
}

TEST(Judge, TheLauncherStopsTheOthersAfterADeath) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world");
    job.dies(1, SIGSEGV);
    job.call(0, "world");
    job.wait(0.2);
    job.dies(0, SIGTERM);
    job.dies(2, SIGTERM);
  };
  check(3, scene, {Verdict::failed, Kind::died, {1}, "", std::nullopt, std::nullopt});
}

TEST(Judge, KilledFirstAndTheOthersAMomentLater) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world");
    job.vanishes(2);
    job.wait(0.6);
    job.vanishes(0);
    job.vanishes(1);
  };
  check(3, scene, {Verdict::failed, Kind::died, {2}, "", std::nullopt, std::nullopt});
}

// The launcher's SIGTERM to the others may be noted before the death that made it send them.
TEST(Judge, KilledAndTheOthersAskedToStopIsTheKilledOnes) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world", {}, 4);
    job.dies(0, SIGTERM);
    job.wait(0.05);
    job.dies(2, SIGTERM);
    job.wait(0.05);
    job.vanishes(1);
  };
  check(3, scene, {Verdict::failed, Kind::died, {1}, "", std::nullopt, std::nullopt});
}

// Too close for a name, and yet the reader is told what the one clock says.
TEST(Judge, OfAKillingTheFirstEndIsToldWhereOneClockTellsIt) {
  for (const bool one_host : {true, false}) {
    HandMadeJob job(3, one_host ? std::vector<int>{0, 2, 4} : std::vector<int>{0, 1, 2});
    job.comm("world", {0, 1, 2});
    job.call_all("world");
    job.dies(1, SIGKILL);
    job.wait(0.2);
    job.dies(0, SIGKILL);
    job.dies(2, SIGKILL);
    const Judged judged = judge_job(job);
    for (const Finding& finding : judged.diagnosis.findings) EXPECT_TRUE(finding.culprits.empty()) << finding.summary;
    const std::vector<std::string>& remarks = judged.diagnosis.remarks;
    const auto says = [&](const std::string& words) {
      return std::any_of(remarks.begin(), remarks.end(),
                         [&](const auto& remark) { return remark.find(words) != std::string::npos; });
    };
    EXPECT_TRUE(says("stopped from outside"));
    EXPECT_EQ(says("the first end noted is that of rank 2, 200 ms before the next"), one_host);
    EXPECT_EQ(says("clocks of several hosts"), !one_host);
  }
}

TEST(Judge, AHealthyJobKilledAtOnceIsNotHung) {
  for (const int signal : {SIGKILL, SIGTERM, SIGINT}) {
    const auto scene = [&](HandMadeJob& job) {
      job.call_all("world", {}, 4);
      job.call(0, "world");
      job.wait(0.001);
      for (int rank = 0; rank < job.size(); rank++) {
        job.dies(rank, signal);
        job.wait(0.05);  // as a supervisor on a busy machine may see deaths of one instant
      }
    };
    check(3, scene, {});
  }
}

TEST(Judge, AbortsOfOtherWatchdogsAreSymptoms) {
  // Rank 1 stays away; after the threshold the victims' watchdogs abort, and the launcher ends the culprit.
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world");
    all_but(job, {1}, kThreshold + 3);
    job.teardown(0, "world", CommState::aborted);
    job.dies(0, SIGABRT);
    job.wait(0.5);
    job.dies(2, SIGABRT);
    job.wait(0.5);
    job.dies(1, SIGTERM);
  };
  check(3, scene, {Verdict::hung, Kind::missing_call, {1}, "world", 1, std::vector<int>{0, 2}});
}

TEST(Judge, ADeathWhenNothingWaits) {
  check(3,
        [](HandMadeJob& job) {
          job.call_all("world");
          job.dies(0, SIGSEGV);
          job.wait(1);
        },
        {Verdict::failed, Kind::died, {0}, "world", std::nullopt, std::nullopt});
}

TEST(Judge, AllEndedAlikeNamesNobody) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world");
    for (int rank = 0; rank < job.size(); rank++) job.exits(rank, 1);
  };
  check(3, scene, {Verdict::failed, Kind::died, {}, "", std::nullopt, std::nullopt});
}

TEST(Judge, AHeartbeatThatStoppedInCopiedTraces) {
  HandMadeJob job(3, {0, 1, 2});
  job.comm("world", {0, 1, 2});
  job.call_all("world");
  job.file(1).last_beat = job.file(1).last_call;
  job.call(0, "world"), job.call(2, "world");
  job.wait(kThreshold + 5);
  std::vector<Process> processes = job.processes();
  for (Process& process : processes) process.liveness = trace::Liveness::elsewhere;
  processes[1].file.last_beat = processes[1].file.last_call;
  const lockstep::Run run = assemble_runs(std::move(processes)).back();
  const Table table = match(run);
  const Diagnosis diagnosis = judge(run, table, {}, 0);
  ASSERT_FALSE(diagnosis.findings.empty());
  EXPECT_EQ(diagnosis.findings.front().kind, Kind::died);
  EXPECT_EQ(diagnosis.findings.front().confidence, Confidence::likely);
}

// --- mismatches
// ----------------------------------------------------------------------------------------------------------------

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
