// SPDX-License-Identifier: MIT
//
// The kinds that need more than calls: states on the device, messages, setup, digests, and what a supervisor did. For
// each one job that must get it and one that looks alike and must not.

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "tests/tools/hand_made.h"
#include "tools/explain/findings_page.h"

namespace lockstep::test {
namespace {

using abi::Fn;
using trace::CommState;

trace::CommInfo& info(HandMadeJob& job, int rank, size_t comm = 0) { return job.file(rank).comms[comm]; }

void states(HandMadeJob& job, int rank, uint64_t started, uint64_t completed) {
  info(job, rank).coll_started = started;
  info(job, rank).coll_completed = completed;
  info(job, rank).p2p_completed = info(job, rank).p2p_called;
}

bool has(const Judged& judged, Kind kind) {
  for (const Finding& finding : judged.diagnosis.findings)
    if (finding.kind == kind) return true;
  return false;
}

TEST(NotStarted, NamesTheRankWhoseDeviceHasNotBegun) {
  for (const bool clear : {true, false}) {
    HandMadeJob job = job_of(3);
    job.call_all("world", {}, 2);
    job.wait(kThreshold + 5);
    for (const int rank : {0, 1, 2}) {
      states(job, rank, rank == 1 ? 1 : 2, 1);
      job.sits_in(rank, "cudaStreamSynchronize");
    }
    if (!clear) states(job, 1, 0, 0);  // it is behind something of NCCL's
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(has(judged, Kind::not_started), clear) << judged.first().summary;
    if (clear) {
      EXPECT_EQ(judged.culprits(), std::vector<int>{1});
    }
  }
}

TEST(HostBlocked, NamesTheRankThatWaitsForWorkOfItsOwn) {
  for (const bool known : {true, false}) {
    HandMadeJob job = job_of(3);
    job.call_all("world");
    job.call(0, "world");
    job.call(2, "world");
    job.wait(kThreshold + 5);
    if (known) states(job, 1, 1, 1);
    job.sits_in(1, "cudaStreamSynchronize");
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, known ? Kind::host_blocked : Kind::stalled_together) << judged.first().summary;
    EXPECT_EQ(judged.culprits(), known ? std::vector<int>{1} : std::vector<int>{});
  }
}

TEST(MessageSizes, ALargerReceiveHangsASmallerOneIsCut) {
  for (const uint64_t received : {32u, 64u, 128u}) {
    HandMadeJob job = job_of(2);
    job.call(0, "world", {Fn::Send, 64, 7, 0, 1});
    job.call(1, "world", {Fn::Recv, received, 7, 0, 0});
    job.wait(kThreshold + 5);
    for (const int rank : {0, 1}) job.sits_in(rank, received > 64 ? "cudaStreamSynchronize" : "evaluate");
    const Judged judged = judge_job(job);
    EXPECT_EQ(has(judged, Kind::p2p_size_mismatch), received != 64);
    if (received == 64) continue;
    EXPECT_EQ(judged.diagnosis.verdict, received > 64 ? Verdict::hung : Verdict::mismatch);
    EXPECT_TRUE(judged.culprits().empty());
    ASSERT_TRUE(judged.first().message.has_value());
    EXPECT_EQ(judged.first().message->number, 0u);
  }
}

TEST(GroupMismatch, AGroupThatDoesNotAddUpHoldsBothEnds) {
  HandMadeJob job = job_of(2);
  for (int i = 0; i < 2; i++) job.call(0, "world", {Fn::Send, 64, 7, 0, 1, true, 0, 5});
  job.call(0, "world", {Fn::Recv, 64, 7, 0, 1, true, 0, 5});
  for (int i = 0; i < 2; i++) job.call(1, "world", {Fn::Recv, 64, 7, 0, 0, true, 0, 5});
  for (const int rank : {0, 1}) {
    job.call(rank, "world");  // closes the group
    job.wait(0.001);
  }
  job.wait(kThreshold + 5);
  for (const int rank : {0, 1}) job.sits_in(rank, "cudaStreamSynchronize");
  const Judged judged = judge_job(job);
  ASSERT_FALSE(judged.diagnosis.findings.empty());
  EXPECT_EQ(judged.first().kind, Kind::group_mismatch) << judged.first().summary;
  EXPECT_TRUE(judged.culprits().empty());
}

TEST(P2pCycle, BothSendFirst) {
  for (const bool both_send : {true, false}) {
    HandMadeJob job = job_of(2);
    job.call(0, "world", {Fn::Send, 64, 7, 0, 1});
    job.call(1, "world", {both_send ? Fn::Send : Fn::Recv, 64, 7, 0, 0});
    job.wait(kThreshold + 5);
    for (const int rank : {0, 1}) job.sits_in(rank, "cudaStreamSynchronize");
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, both_send ? Kind::p2p_cycle : Kind::stalled_together) << judged.first().summary;
    EXPECT_TRUE(judged.culprits().empty());
    EXPECT_EQ(judged.first().cycle.size(), both_send ? 2u : 0u);
  }
}

TEST(P2pUnmatched, TheEndThatIsFreeAndDoesNotAnswer) {
  for (const bool answers : {false, true}) {
    HandMadeJob job = job_of(3);
    job.call(0, "world", {Fn::Send, 64, 7, 0, 1});
    if (answers) job.call(1, "world", {Fn::Recv, 64, 7, 0, 0});
    job.wait(kThreshold + 5);
    job.sits_in(0, "cudaStreamSynchronize");
    job.sits_in(1, "evaluate");
    const Judged judged = judge_job(job);
    EXPECT_EQ(has(judged, Kind::p2p_unmatched), !answers);
    if (answers) continue;
    EXPECT_EQ(judged.culprits(), std::vector<int>{1});
    ASSERT_TRUE(judged.first().message.has_value());
    EXPECT_TRUE(judged.first().message->sends);
    EXPECT_EQ(judged.first().confidence, Confidence::likely);
  }
}

TEST(CrossCommunicatorCycle, ThreeRanksInThreeCommunicators) {
  for (const bool closed : {true, false}) {
    HandMadeJob job = job_of(3);
    job.comm("a", {0, 1});
    job.comm("b", {1, 2});
    job.comm("c", {0, 2});
    job.call(0, "a");
    job.call(1, "b");
    if (closed) job.call(2, "c");
    job.wait(kThreshold + 5);
    for (const int rank : {0, 1, 2}) job.sits_in(rank, closed || rank != 2 ? "cudaStreamSynchronize" : "evaluate");
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, closed ? Kind::cross_communicator_cycle : Kind::missing_call)
        << judged.first().summary;
    EXPECT_EQ(judged.culprits(), closed ? std::vector<int>{} : std::vector<int>{2});
    EXPECT_EQ(judged.first().cycle.size(), closed ? 3u : 0u);
  }
}

TEST(WrongCommunicator, ACallThatWasAlwaysMadeOnTheSmallerGroup) {
  for (const bool seen_before : {true, false}) {
    HandMadeJob job = job_of(4);
    job.comm("half", {0, 1});
    job.comm("mlp", {0, 1, 2, 3});
    if (seen_before) job.call_all("half", {Fn::AllReduce, 256});
    for (const int rank : {0, 1}) job.call(rank, "world", {Fn::AllReduce, 256});
    for (const int rank : {2, 3}) job.call(rank, "mlp", {Fn::AllGather, 64});
    job.wait(kThreshold + 5);
    for (const int rank : {0, 1, 2, 3}) job.sits_in(rank, "cudaStreamSynchronize");
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, seen_before ? Kind::wrong_communicator : Kind::order_inversion);
    EXPECT_EQ(judged.culprits(), seen_before ? (std::vector<int>{0, 1}) : std::vector<int>{});
  }
}

TEST(OrderInversion, OnOneStreamItHoldsEvenWhatAllHaveLaunched) {
  for (const bool differs : {true, false}) {
    HandMadeJob job = job_of(2);
    job.comm("b", {0, 1});
    for (const int rank : {0, 1})
      for (const char* comm : {"world", "b"})
        job.call(rank, rank == 1 && differs ? (comm[0] == 'b' ? "world" : "b") : comm);
    job.wait(kThreshold + 5);
    for (const int rank : {0, 1}) job.sits_in(rank, "cudaStreamSynchronize");
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, differs ? Kind::order_inversion : Kind::stalled_together);
    EXPECT_TRUE(judged.culprits().empty());
  }
}

// Ranks 0 and 1 use two communicators on two streams, in the same order or not, and all of it completes.
HandMadeJob two_orders(bool differs, bool grouped) {
  HandMadeJob job = job_of(3);
  job.comm("b", {0, 1});
  job.call_all("world", {}, 2);
  job.call_all("b");
  for (const int rank : {0, 1, 2}) {
    const uint32_t group = grouped ? 7 : 0;
    const CallSpec on_world{Fn::AllReduce, 1024, 7, 0, -1, true, 0, group},
        on_b{Fn::AllGather, 64, 7, 0, -1, true, 0, group};
    const bool b_first = rank == 1 && differs;
    if (b_first) job.call(rank, "b", on_b);
    job.call(rank, "world", on_world);
    if (rank == 0 || (rank == 1 && !differs)) job.call(rank, "b", on_b);
  }
  job.call_all("world");
  for (const int rank : {0, 1, 2})
    for (trace::Call& call : job.file(rank).calls) call.stream = call.comm;
  return job;
}

TEST(OrderInversion, OnTwoStreamsItIsAWarning) {
  for (const bool differs : {true, false})
    for (const bool grouped : {true, false}) {
      const Judged judged = judge_job(two_orders(differs, grouped));
      EXPECT_EQ(judged.diagnosis.verdict, Verdict::healthy);
      ASSERT_EQ(judged.diagnosis.findings.size(), differs && !grouped ? 1u : 0u);
      if (!differs || grouped) continue;
      EXPECT_EQ(judged.first().kind, Kind::order_inversion);
      EXPECT_EQ(judged.first().severity, Severity::warning);
      EXPECT_EQ(judged.comm(), "world");
      EXPECT_EQ(judged.first().seq, 2u);
      EXPECT_EQ(judged.victims(), (std::vector<int>{0, 1}));
      EXPECT_TRUE(judged.culprits().empty());
      EXPECT_EQ(judged.first().detail, "rank 0 calls it before AllGather #1 on b, rank 1 calls it after that");
    }
}

TEST(OrderInversion, RowsThatARingHasLostTellNothing) {
  HandMadeJob job = two_orders(true, false);
  job.wrap(0, 1);
  for (trace::CommInfo& comm : job.file(0).comms) comm.recent.clear();
  for (const Finding& finding : judge_job(job).diagnosis.findings) EXPECT_NE(finding.kind, Kind::order_inversion);
}

TEST(OrderInversion, ACallLeftOutElsewhereIsNoInversion) {
  HandMadeJob job = job_of(2);
  job.comm("b", {0, 1});
  for (const int rank : {0, 1})
    for (int i = 0; i < 4; i++) {
      job.call(rank, "world");
      if (rank == 0 || i != 1) job.call(rank, "b", {Fn::AllGather, 64});
    }
  job.wait(kThreshold + 5);
  job.sits_in(0, "cudaStreamSynchronize");
  job.sits_in(1, "evaluate");
  const Judged judged = judge_job(job);
  ASSERT_EQ(judged.diagnosis.findings.size(), 1u) << judged.diagnosis.findings.back().summary;
  EXPECT_EQ(judged.first().kind, Kind::missing_call);
}

TEST(Teardown, InDifferentOrders) {
  for (const bool differs : {true, false}) {
    HandMadeJob job = job_of(2);
    job.comm("b", {0, 1});
    job.call_all("world");
    job.call_all("b");
    job.call(0, "world", {Fn::CommDestroy, 0, 7, 0, -1, false});
    job.call(1, differs ? "b" : "world", {Fn::CommDestroy, 0, 7, 0, -1, false});
    job.wait(kThreshold + 5);
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(has(judged, Kind::teardown_order), differs) << judged.first().summary;
    EXPECT_TRUE(judged.culprits().empty());
  }
}

TEST(CommError, TheFirstOneWhenNothingElseIsWrong) {
  HandMadeJob job = job_of(2);
  job.call_all("world");
  job.call(1, "world", {Fn::AllReduce, 8, 7, 0, -1, true, 2});
  job.wait(1);
  job.call(0, "world", {Fn::AllReduce, 8, 7, 0, -1, true, 6});
  const Judged judged = judge_job(job);
  ASSERT_FALSE(judged.diagnosis.findings.empty());
  EXPECT_EQ(judged.first().kind, Kind::comm_error);
  EXPECT_EQ(judged.culprits(), std::vector<int>{1});
}

TEST(DuplicateDevice, OnlyWhereTheCommunicatorFailed) {
  for (const CommState state : {CommState::failed, CommState::live}) {
    HandMadeJob job(2, {0, 2});  // both on host a
    job.comm("world", {0, 1}, state);
    for (const int rank : {0, 1}) info(job, rank).device = 0;
    const Judged judged = judge_job(job);
    EXPECT_EQ(has(judged, Kind::duplicate_device), state == CommState::failed);
  }
}

TEST(Environment, SettingsThatDifferAreAWarning) {
  for (const char* value : {"ring", "tree"}) {
    HandMadeJob job = job_of(2);
    job.call_all("world");
    job.file(0).texts = {"environment\nNCCL_ALGO=ring\nNCCL_DEBUG_FILE=a\n"};
    job.file(1).texts = {std::string("environment\nNCCL_ALGO=") + value + "\nNCCL_DEBUG_FILE=b\n"};
    const Judged judged = judge_job(job);
    EXPECT_EQ(has(judged, Kind::environment_differs), std::string(value) == "tree");
    EXPECT_EQ(judged.diagnosis.verdict, Verdict::healthy);
  }
}

TEST(GroupSize, SeveralWorldsWhereOneMayHaveBeenMeant) {
  HandMadeJob job(4, {0, 1, 2, 3});
  job.comm("first", {0, 1});
  job.comm("second", {2, 3});
  EXPECT_TRUE(has(judge_job(job), Kind::group_size));
  job.comm("world", {0, 1, 2, 3});
  EXPECT_FALSE(has(judge_job(job), Kind::group_size));
}

TEST(ConcurrentUse, TwoThreadsInsideOneCommunicator) {
  for (const bool overlaps : {true, false}) {
    HandMadeJob job = job_of(2);
    job.call_all("world", {}, 2);
    std::vector<trace::Call>& calls = job.file(0).calls;
    calls[1].tid = 77;
    calls[1].called.mono_ns += overlaps ? 500 : 5000;
    calls[1].return_time.mono_ns = calls[1].called.mono_ns + 1000;
    calls[0].return_time.mono_ns = calls[0].called.mono_ns + 1000;
    EXPECT_EQ(has(judge_job(job), Kind::concurrent_use), overlaps);
  }
}

TEST(DuplicateData, TheSameSampleOnTwoRanksOfADataParallelGroup) {
  for (const bool same : {true, false}) {
    HandMadeJob job = job_of(2);
    job.call_all("world");
    for (const int rank : {0, 1}) {
      trace::MarkEvent step, sample;
      step.kind = trace::kMarkStep;
      sample.kind = trace::kMarkSample;
      sample.text = same || rank == 0 ? "a" : "b";
      job.file(rank).marks = {step, sample};
    }
    EXPECT_EQ(has(judge_job(job), Kind::duplicate_data), same);
  }
}

TEST(ResultDivergence, TheMinorityIsNamedAndATieIsNot) {
  for (const int ranks : {2, 3}) {
    HandMadeJob job = job_of(ranks);
    job.call_all("world");
    for (int rank = 0; rank < ranks; rank++) {
      trace::Digest digest;
      digest.fn = static_cast<uint16_t>(Fn::AllReduce);
      digest.comm = 1;
      digest.seq = 0;
      digest.output = true;
      digest.value = rank == 1 ? 5 : 7;
      job.file(rank).digests = {digest};
    }
    const Judged judged = judge_job(job);
    ASSERT_FALSE(judged.diagnosis.findings.empty());
    EXPECT_EQ(judged.first().kind, Kind::result_divergence);
    EXPECT_EQ(judged.diagnosis.verdict, Verdict::mismatch);
    EXPECT_EQ(judged.culprits(), ranks == 3 ? std::vector<int>{1} : std::vector<int>{});
  }
}

TEST(Deaths, OfTwoRanksTheOneThatWasKilledFirst) {
  for (const bool supervised : {false, true}) {
    HandMadeJob job = job_of(2);
    job.call_all("world");
    if (supervised)
      for (const int rank : {0, 1})
        job.file(rank).texts.push_back(std::string(kSignalNote) + "15 " +
                                       std::to_string(job.file(rank).last_call.wall_ns));
    job.wait(1);
    job.vanishes(1);
    job.wait(3);
    job.vanishes(0);
    const Judged judged = judge_job(job);
    EXPECT_EQ(judged.diagnosis.verdict, supervised ? Verdict::healthy : Verdict::failed);
    if (supervised) continue;
    EXPECT_EQ(judged.first().kind, Kind::died);
    EXPECT_EQ(judged.culprits(), std::vector<int>{1});
  }
}

TEST(FindingsPage, HasASectionForEveryKind) {
  for (const std::string& kind : kind_names()) {
    const std::string section = findings_section(kind);
    EXPECT_EQ(section.rfind("## ", 0), 0u) << kind;
    EXPECT_NE(section.find(kind), std::string::npos);
  }
  EXPECT_EQ(findings_section("call"), "");
}

// `--explain KIND` and the page are one text, and say of each kind what a reader needs.
TEST(FindingsPage, SaysOfEveryKindHowItIsToldApartWhereItWasSeenAndItsCure) {
  std::ifstream page(FINDINGS_PAGE);
  const std::string catalogue{std::istreambuf_iterator<char>(page), {}};
  for (const std::string& kind : kind_names()) {
    const std::string section = findings_section(kind);
    EXPECT_NE(catalogue.find(section), std::string::npos) << kind;
    for (const char* part : {"*Told apart*", "*Seen*", "*Cure*"})
      EXPECT_NE(section.find(part), std::string::npos) << kind << " " << part;
  }
}

}  // namespace
}  // namespace lockstep::test
