// SPDX-License-Identifier: MIT
//
// One call that is left out and closes a circle over what has been launched behind it; who is held up by a call without
// being in it; and calls that differ but whose turn never came.

#include "tests/tools/scenes_by_hand.h"

namespace lockstep::test {
namespace {

using abi::Fn;

void all_sit(HandMadeJob& job, const char* function = "cudaStreamSynchronize") {
  job.wait(kThreshold + 5);
  for (int rank = 0; rank < job.size(); rank++) job.sits_in(rank, function);
}

// Is everybody in the circle in it once, and what each waits for the next one?
std::vector<int> cycle_of(const Judged& judged) {
  std::vector<int> ranks;
  for (const size_t rank : judged.first().cycle) ranks.push_back(judged.run->ranks[rank].number);
  return ranks;
}

TEST(Circles, ACallLeftOutHoldsUpWhoeverWaitsBehindIt) {
  HandMadeJob job = job_of(5);
  job.comm("front", {0, 1});
  job.comm("back", {2, 3, 4});
  job.call_all("front"), job.call_all("back"), job.call_all("world");
  job.call_all("front");
  for (const int rank : {2, 4}) job.call(rank, "back");
  job.call_all("world");
  all_sit(job);
  const Judged judged = judge_job(job);
  EXPECT_EQ(judged.diagnosis.verdict, Verdict::hung);
  ASSERT_FALSE(judged.diagnosis.findings.empty());
  EXPECT_EQ(judged.first().kind, Kind::cross_communicator_cycle) << judged.first().summary;
  EXPECT_EQ(judged.comm(), "back");
  EXPECT_EQ(judged.first().seq, 1u);
  EXPECT_TRUE(judged.culprits().empty());
  EXPECT_EQ(cycle_of(judged), (std::vector<int>{3, 2}));
  EXPECT_EQ(judged.victims(), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_NE(judged.first().summary.find("rank 3 waits for rank 2, which waits for rank 3"), std::string::npos)
      << judged.first().summary;
}

// The same by a message: no group of messages is odd where there is none.
TEST(Circles, AMessageLeftOutIsNoGroupThatDoesNotAddUp) {
  for (const bool grouped : {false, true}) {
    HandMadeJob job = job_of(3);
    job.call_all("world");
    job.call(2, "world", {Fn::Recv, 64, 7, 0, 1, true, 0, grouped ? 5u : 0u});
    if (grouped) {
      job.call(2, "world", {Fn::Send, 64, 7, 0, 1, true, 0, 5});
      job.call(1, "world", {Fn::Recv, 64, 7, 0, 2});
    }
    job.call_all("world");
    all_sit(job);
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, grouped ? Kind::group_mismatch : Kind::cross_communicator_cycle)
        << judged.first().summary;
    EXPECT_TRUE(judged.culprits().empty());
    EXPECT_EQ(cycle_of(judged), grouped ? std::vector<int>{} : (std::vector<int>{1, 2}));
    EXPECT_EQ(judged.victims(), (std::vector<int>{0, 1, 2}));
  }
}

// Rank 0 stays away from a call with rank 1, who has launched another one behind it, which rank 2 sits in.
TEST(Circles, WhoSitsBehindAMissingCallIsAVictim) {
  const auto scene = [](HandMadeJob& job) {
    job.comm("a", {0, 1});
    job.comm("b", {1, 2});
    job.call(1, "a");
    job.call(1, "b"), job.call(2, "b");
    job.wait(kThreshold + 5);
    job.sits_in(0, "data_loader_next");
    for (const int rank : {1, 2}) job.sits_in(rank, "cudaStreamSynchronize");
  };
  check(3, scene, {Verdict::hung, Kind::missing_call, {0}, "a", 0, std::vector<int>{1, 2}});
}

// ... and not who does something else meanwhile, or has just come.
TEST(Circles, WhoDoesNotSitThereIsNone) {
  for (const bool sits : {false, true}) {
    const auto scene = [&](HandMadeJob& job) {
      job.comm("a", {0, 1});
      job.comm("b", {1, 2});
      job.call(1, "a"), job.call(1, "b");
      if (!sits) job.call(2, "b");
      job.wait(kThreshold + 5);
      if (sits) job.call(2, "b");
      job.wait(1);
      job.sits_in(0, "data_loader_next"), job.sits_in(1, "cudaStreamSynchronize");
      job.sits_in(2, sits ? "cudaStreamSynchronize" : "save_checkpoint");
    };
    check(3, scene, {Verdict::hung, Kind::missing_call, {0}, "a", 0, std::vector<int>{1}});
  }
}

// Ranks 0 and 1 have launched ahead; what differs is behind the call that rank 2 never made.
TEST(TurnNeverCame, CallsThatDifferBehindAMissingOneHoldNothingUp) {
  HandMadeJob job = job_of(3);
  job.call_all("world");
  for (const int rank : {0, 1}) {
    job.call(rank, "world");
    job.call(rank, "world", {Fn::AllReduce, rank == 0 ? 64u : 128u});
  }
  job.wait(kThreshold + 5);
  for (const int rank : {0, 1, 2}) {
    trace::CommInfo& info = job.file(rank).comms[0];
    info.coll_started = rank == 2 ? 1 : 2;
    info.coll_completed = 1;
    job.sits_in(rank, rank == 2 ? "data_loader_next" : "cudaStreamSynchronize");
  }
  const Judged judged = judge_job(job);
  ASSERT_EQ(judged.diagnosis.findings.size(), 2u);
  EXPECT_EQ(judged.first().kind, Kind::missing_call) << judged.first().summary;
  EXPECT_EQ(judged.culprits(), std::vector<int>{2});
  const Finding& behind = judged.diagnosis.findings[1];
  EXPECT_EQ(behind.kind, Kind::count_mismatch);
  EXPECT_FALSE(behind.hangs);
  EXPECT_EQ(behind.summary.find("hangs"), std::string::npos) << behind.summary;
  EXPECT_NE(behind.summary.find("its turn never came"), std::string::npos) << behind.summary;
}

// Nobody can see what is in front: the job hangs all the same, though not since those calls.
TEST(TurnNeverCame, BehindWhatNobodyCanSeeTheJobHangs) {
  HandMadeJob job = job_of(2);
  job.call_all("world");
  for (const int rank : {0, 1}) job.call(rank, "world", {Fn::AllReduce, rank == 0 ? 64u : 128u});
  all_sit(job);
  for (const int rank : {0, 1}) job.file(rank).comms[0].coll_started = job.file(rank).comms[0].coll_completed = 1;
  const Judged judged = judge_job(job);
  ASSERT_FALSE(judged.diagnosis.findings.empty());
  EXPECT_EQ(judged.diagnosis.verdict, Verdict::hung);
  for (const Finding& finding : judged.diagnosis.findings)
    EXPECT_EQ(finding.summary.find("hangs since"), std::string::npos) << finding.summary;
}

// Launched faster than the driver answers: whether what differs has begun is not known, and it is what happened first.
TEST(TurnNeverCame, WhatPassedUnwatchedMayHaveHadItsTurn) {
  for (const bool unwatched : {true, false}) {
    HandMadeJob job = job_of(3);
    job.call_all("world");
    for (const int rank : {0, 1, 2}) job.call(rank, "world", {Fn::AllReduce, rank == 0 ? 64u : 128u});
    job.call_all("world");
    for (const int rank : {0, 1}) job.call(rank, "world");
    job.wait(kThreshold + 5);
    for (const int rank : {0, 1, 2}) {
      trace::CommInfo& info = job.file(rank).comms[0];
      info.coll_started = info.coll_completed = 1;
      info.unwatched = unwatched ? 2 : 0;
      job.sits_in(rank, rank == 2 ? "data_loader_next" : "cudaStreamSynchronize");
    }
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, unwatched ? Kind::count_mismatch : Kind::missing_call) << judged.first().summary;
    EXPECT_EQ(judged.diagnosis.verdict, Verdict::hung);
  }
}

// Of those behind the last known start the newest is surely watched, and the driver may have said where the line
// stands.
TEST(NotStarted, WhatPassedUnwatchedIsBlamedWhereTheLineIsKnownToStand) {
  enum class Known { newest, line, nothing };
  for (const Known known : {Known::newest, Known::line, Known::nothing}) {
    HandMadeJob job = job_of(3);
    job.call_all("world", {}, known == Known::newest ? 2 : 300);
    job.wait(kThreshold + 5);
    for (const int rank : {0, 1, 2}) {
      trace::CommInfo& info = job.file(rank).comms[0];
      info.coll_started = rank == 1 ? 1 : 2;
      info.coll_completed = 1;
      info.unwatched = 7;
      if (known == Known::line) info.coll_unstarted = info.coll_started;
      job.sits_in(rank, "cudaStreamSynchronize");
    }
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, known == Known::nothing ? Kind::stalled_together : Kind::not_started)
        << judged.first().summary;
    EXPECT_EQ(judged.culprits(), known == Known::nothing ? std::vector<int>{} : std::vector<int>{1});
  }
}

// Rank 1 is gone; far behind the call it is missed in, the others' calls differ. With starts on record and without.
TEST(TurnNeverCame, BehindAReductionThatMissesSomebody) {
  for (const bool states : {true, false})
    for (const bool killed : {true, false}) {
      HandMadeJob job = job_of(4);
      job.call_all("world");
      for (const int rank : {0, 2, 3}) job.call(rank, "world");
      for (const int rank : {0, 2, 3}) job.call(rank, "world", {rank == 3 ? Fn::AllGather : Fn::AllReduce});
      killed ? job.dies(1, SIGKILL) : job.exits(1, 0);
      job.wait(kThreshold + 5);
      for (const int rank : {0, 2, 3}) {
        trace::CommInfo& info = job.file(rank).comms[0];
        info.unwatched = 1;
        if (states) info.coll_started = info.coll_unstarted = 2, info.coll_completed = 1;
        job.sits_in(rank, "cudaStreamSynchronize");
      }
      const Judged judged = judge_job(job);
      ASSERT_FALSE(judged.diagnosis.findings.empty());
      EXPECT_EQ(judged.first().kind, killed ? Kind::died : Kind::left_early) << judged.first().summary;
      EXPECT_EQ(judged.culprits(), std::vector<int>{1});
      for (const Finding& finding : judged.diagnosis.findings) {
        const bool says_so = finding.summary.find("its turn never came") != std::string::npos;
        EXPECT_EQ(says_so, finding.kind == Kind::op_mismatch) << finding.summary;
      }
    }
}

TEST(Making, SaysHowManyHaveCome) {
  HandMadeJob job = job_of(6);
  job.comm("late", {0, 1}, trace::CommState::initialising, 3);
  job.wait(kThreshold + 5);
  const Judged judged = judge_job(job);
  ASSERT_FALSE(judged.diagnosis.findings.empty());
  EXPECT_EQ(judged.first().kind, Kind::init_incomplete);
  EXPECT_TRUE(judged.culprits().empty());
  EXPECT_NE(judged.first().summary.find("2 of its 3 ranks are known to have called it"), std::string::npos)
      << judged.first().summary;
}

TEST(Words, OneRankOrSeveralWithoutATrace) {
  for (const std::vector<int>& lost : {std::vector<int>{1}, std::vector<int>{1, 2, 3}}) {
    HandMadeJob job = job_of(5);
    job.call_all("world");
    for (const int rank : lost) job.lose_trace(rank);
    all_sit(job);
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, Kind::missing_trace);
    const std::string& said = judged.first().summary;
    EXPECT_EQ(said.find(lost.size() == 1 ? "no trace of rank 1, " : "no trace of ranks 1-3, "), 0u) << said;
    EXPECT_NE(said.find(lost.size() == 1 ? "waiting for it" : "waiting for them"), std::string::npos) << said;
  }
}

TEST(Words, MessagesAreCountedFromZero) {
  HandMadeJob job = job_of(2);
  job.call(0, "world", {Fn::Send, 64, 7, 0, 1});
  job.wait(kThreshold + 5);
  job.sits_in(0, "cudaStreamSynchronize"), job.sits_in(1, "evaluate");
  const Judged judged = judge_job(job);
  ASSERT_FALSE(judged.diagnosis.findings.empty());
  EXPECT_NE(judged.first().summary.find("number 0 in that direction (counted from 0)"), std::string::npos)
      << judged.first().summary;
}

}  // namespace
}  // namespace lockstep::test
