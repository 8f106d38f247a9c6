// SPDX-License-Identifier: MIT
//
// Ranks that ended: early, by a signal, all at once, one first. Which is the cause, and which are symptoms.

#include <signal.h>

#include "tests/tools/scenes_by_hand.h"

namespace lockstep::test {
namespace {

using trace::CommState;

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

TEST(Judge, WhoEndedInAnotherWayIsSaidToHave) {
  HandMadeJob job(4, {0, 1, 2, 3});
  job.comm("world", {0, 1, 2, 3});
  job.call_all("world");
  job.dies(1, SIGSEGV);
  job.exits(3, 3);
  job.call(0, "world"), job.call(2, "world");
  job.wait(kThreshold + 5);
  const Judged judged = judge_job(job);
  EXPECT_EQ(judged.first().kind, Kind::died);
  const std::string& how = judged.first().detail;
  EXPECT_NE(how.find("rank 1: "), std::string::npos) << how;
  EXPECT_NE(how.find("SIGSEGV"), std::string::npos) << how;
  EXPECT_NE(how.find("rank 3: it ended with exit status 3"), std::string::npos) << how;
}

// A crash, and later the end of a rank that did not wait for anybody in NCCL: a reaction where one clock tells the
// order.
struct Later {
  double seconds;
  int status;  // exit status; of a negative one the signal
  bool one_host, named;
};

TEST(Judge, WhoEndsAfterACrashIsToldWithIt) {
  for (const Later& later : {Later{0.7, 1, true, false}, Later{0.7, -SIGABRT, true, false}, Later{0.2, 1, true, true},
                             Later{0.7, 1, false, true}, Later{2.5, 1, false, false}, Later{0.7, -SIGSEGV, true, true},
                             Later{0.7, -SIGKILL, true, true}, Later{30, 1, true, true}}) {
    SCOPED_TRACE(testing::Message() << later.seconds << " s later, " << later.status);
    HandMadeJob job(4, later.one_host ? std::vector<int>{0, 2, 4, 6} : std::vector<int>{0, 1, 4, 6});
    job.comm("world", {0, 1, 2, 3});
    job.call_all("world");
    job.call(0, "world"), job.call(2, "world");
    job.dies(1, SIGSEGV);
    job.wait(later.seconds);
    later.status < 0 ? job.dies(3, -later.status) : job.exits(3, later.status);
    job.wait(kThreshold + 5);
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.diagnosis.verdict, Verdict::failed);
    EXPECT_EQ(judged.first().kind, Kind::died);
    EXPECT_EQ(judged.culprits(), job.numbers(later.named ? std::vector<int>{1, 3} : std::vector<int>{1}));
    EXPECT_EQ(judged.victims(), job.numbers(later.named ? std::vector<int>{0, 2} : std::vector<int>{0, 2, 3}));
    EXPECT_EQ(judged.first().summary.find("rank 6 followed: it ") != std::string::npos, !later.named)
        << judged.first().summary;
    for (size_t i = 1; i < judged.diagnosis.findings.size(); i++)
      EXPECT_TRUE(judged.diagnosis.findings[i].culprits.empty()) << judged.diagnosis.findings[i].summary;
  }
}

// Nobody misses the one that crashed, only the one that followed it.
TEST(Judge, WhoFollowsACrashThatNobodyWaitsForIsToldWithIt) {
  HandMadeJob job = job_of(4);
  job.comm("train", {1, 2, 3});
  job.call_all("world");
  for (const int rank : {2, 3}) job.call(rank, "train");
  job.dies(0, SIGSEGV);
  job.wait(2.5);  // on another host
  job.dies(1, SIGABRT);
  job.wait(kThreshold + 5);
  const Judged judged = judge_job(job);
  ASSERT_EQ(judged.diagnosis.findings.size(), 1u) << judged.diagnosis.findings[1].summary;
  EXPECT_EQ(judged.first().kind, Kind::died);
  EXPECT_EQ(judged.culprits(), std::vector<int>{0});
  EXPECT_EQ(judged.victims(), (std::vector<int>{1, 2, 3}));
  EXPECT_NE(judged.first().summary.find("rank 1 followed: it "), std::string::npos) << judged.first().summary;
}

// What came before a crash was not brought about by it; and a clean end is never a reaction.
TEST(Judge, WhoEndsBeforeACrashOrWellIsNamed) {
  for (const bool well : {true, false}) {
    HandMadeJob job(4, {0, 2, 4, 6});
    job.comm("world", {0, 1, 2, 3});
    job.call_all("world");
    job.call(0, "world"), job.call(2, "world");
    if (well) job.dies(1, SIGSEGV), job.wait(0.7), job.exits(3, 0);
    if (!well) job.exits(3, 3), job.wait(0.7), job.dies(1, SIGSEGV);
    job.wait(kThreshold + 5);
    std::vector<int> named;
    const Judged judged = judge_job(job);
    for (const Finding& finding : judged.diagnosis.findings)
      for (const size_t rank : finding.culprits) named.push_back(judged.run->ranks[rank].number);
    std::sort(named.begin(), named.end());
    EXPECT_EQ(named, (std::vector<int>{2, 6})) << judged.first().summary;
  }
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

}  // namespace
}  // namespace lockstep::test
