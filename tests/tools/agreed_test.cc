// SPDX-License-Identifier: MIT
//
// What the loader leaves out of a job: how much stays does not depend on how many calls were made, and verdicts do not
// depend on what was left out.

#include "tools/job/agreed.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/tools/hand_made.h"

namespace lockstep::test {
namespace {

using abi::Fn;

struct Smaller {
  size_t calls = 0, marks = 0;  // that stay
  std::unique_ptr<lockstep::Run> run;
  Table table;
  Diagnosis diagnosis;
};

// As the loader does it.
Smaller judge_smaller(const HandMadeJob& job) {
  AgreedCalls agreed;
  const std::vector<Process> whole = job.processes();
  for (const Process& process : whole) agreed.add_head(process.file);
  std::vector<Process> processes;
  do {
    processes = whole;
    for (Process& process : processes) process.messages_left_out = agreed.shrink(process.file);
  } while (agreed.keep_what_differs());
  Smaller out;
  for (const Process& process : processes) {
    out.calls += process.file.calls.size();
    out.marks += process.file.marks.size();
  }
  out.run = std::make_unique<lockstep::Run>(std::move(assemble_runs(std::move(processes)).back()));
  out.table = match(*out.run);
  out.diagnosis = judge(*out.run, out.table, {}, 0);
  return out;
}

// All that was made has completed, but for the last `open` calls of each communicator.
void complete(HandMadeJob& job, uint64_t open = 0) {
  for (int rank = 0; rank < job.size(); rank++)
    for (trace::CommInfo& info : job.file(rank).comms) {
      info.coll_started = info.coll_completed = info.coll_called - std::min(info.coll_called, open);
      info.p2p_completed = info.p2p_called;
    }
}

constexpr int kRanks = 4;
using Iteration = std::function<void(HandMadeJob& job, int i)>;

// How many calls stay when each of `times` iterations is this.
size_t stay(int times, const Iteration& iteration) {
  HandMadeJob job = job_of(kRanks);
  job.comm("pair", {0, 1});
  for (int i = 0; i < times; i++) iteration(job, i);
  complete(job);
  const Smaller smaller = judge_smaller(job);
  EXPECT_TRUE(smaller.diagnosis.findings.empty()) << smaller.diagnosis.findings.front().detail;
  return smaller.calls;
}

TEST(Agreed, WhatStaysDoesNotGrowWithTheCalls) {
  const std::pair<const char*, Iteration> kinds[] = {
      {"plain", [](HandMadeJob& job, int) { job.call_all("world"); }},
      {"zero counts",
       [](HandMadeJob& job, int) {
         job.call_all("world", {Fn::AllReduce, 0});
         job.call_all("world");
       }},
      {"two communicators",
       [](HandMadeJob& job, int i) {
         job.call_all("world");
         if (i % 2) job.call_all("pair", {Fn::AllGather, 8});
       }},
      {"groups",
       [](HandMadeJob& job, int i) {
         const uint32_t group = static_cast<uint32_t>(i + 1);
         for (int rank = 0; rank < kRanks; rank++) {
           job.call(rank, "world", {Fn::AllReduce, 8, 7, 0, -1, true, 0, group});
           job.call(rank, "world", {Fn::AllGather, 8, 7, 0, -1, true, 0, group});
           job.file(rank).calls.push_back(job.file(rank).calls.back());
           trace::Call& end = job.file(rank).calls.back();
           end.event = job.file(rank).events++;
           end.fn = static_cast<uint16_t>(Fn::GroupEnd);
           end.comm = 0;
           end.seq = UINT64_MAX;
           end.group_depth = 1;
         }
       }},
      {"a watchdog",
       [](HandMadeJob& job, int) {
         job.call_all("world");
         job.call_all("world", {Fn::CommGetAsyncError, 0});
       }},
  };
  for (const auto& [name, iteration] : kinds) {
    const size_t few = stay(640, iteration), many = stay(3200, iteration);
    EXPECT_EQ(few, many) << name;
    EXPECT_LT(many, 3200u) << name;
  }
}

TEST(Agreed, AMissingTraceIsNoReasonToKeepAll) {
  HandMadeJob job = job_of(kRanks);
  job.call_all("world", {}, 1000);
  complete(job);
  job.lose_trace(2);
  EXPECT_LT(judge_smaller(job).calls, 600u);
}

TEST(Agreed, ThreadsThatOverlapAreStillFound) {
  HandMadeJob job = job_of(2);
  for (int i = 0; i < 1000; i++) {
    job.call_all("world");
    for (const int rank : {0, 1}) {
      trace::Call& call = job.file(rank).calls.back();
      call.tid += static_cast<uint32_t>(i % 2);
      call.called.mono_ns += i * 1000;
      call.return_time.mono_ns = call.called.mono_ns + 1500;
    }
  }
  complete(job);
  const Smaller smaller = judge_smaller(job);
  EXPECT_LT(smaller.calls, 400u);
  ASSERT_FALSE(smaller.diagnosis.findings.empty());
  EXPECT_EQ(smaller.diagnosis.findings.front().kind, Kind::concurrent_use);
  EXPECT_EQ(smaller.diagnosis.findings.front().seq, 1u);
}

TEST(Agreed, AnOldDifferenceIsStillTheFirst) {
  for (const bool zero : {false, true}) {
    HandMadeJob job = job_of(kRanks);
    for (int i = 0; i < 1000; i++)
      for (int rank = 0; rank < kRanks; rank++) {
        const bool odd = rank == 1 && i == 300;
        job.call(rank, "world", {Fn::AllReduce, odd ? (zero ? 0u : 7u) : 64u});
      }
    job.wait(kThreshold + 5);
    complete(job, 1);
    const Smaller smaller = judge_smaller(job);
    EXPECT_LT(smaller.calls, 2000u);
    ASSERT_FALSE(smaller.diagnosis.findings.empty());
    const Finding& finding = smaller.diagnosis.findings.front();
    EXPECT_EQ(finding.kind, Kind::count_mismatch);
    EXPECT_EQ(finding.seq, 300u);
    EXPECT_EQ(finding.culprits, std::vector<size_t>{1});
  }
}

// Messages 0 -> 1 and 1 -> 2, many; of each the number on its edge is on record.
HandMadeJob pipeline(int times, std::optional<int> odd) {
  HandMadeJob job = job_of(3);
  for (int i = 0; i < times; i++)
    for (const int rank : {0, 1}) {
      const uint64_t received = odd == i && rank == 0 ? 32 : 64;
      job.call(rank, "world", {Fn::Send, 64, 7, 0, rank + 1});
      job.file(rank).calls.back().seq = static_cast<uint64_t>(i);
      job.call(rank + 1, "world", {Fn::Recv, received, 7, 0, rank});
      job.file(rank + 1).calls.back().seq = static_cast<uint64_t>(i);
    }
  complete(job);
  return job;
}

TEST(Agreed, MessagesThatBothEndsAreDoneWithGo) {
  const size_t few = judge_smaller(pipeline(640, std::nullopt)).calls;
  EXPECT_EQ(few, judge_smaller(pipeline(3200, std::nullopt)).calls);
  EXPECT_LT(few, 1000u);
}

TEST(Agreed, AnOldMessageOfAnotherSizeIsStillFound) {
  const Smaller smaller = judge_smaller(pipeline(1000, 200));
  EXPECT_LT(smaller.calls, 2000u);
  ASSERT_FALSE(smaller.diagnosis.findings.empty());
  EXPECT_EQ(smaller.diagnosis.findings.front().kind, Kind::p2p_size_mismatch);
  EXPECT_EQ(smaller.diagnosis.findings.front().message->number, 200u);
}

// That an end has never answered on an edge is known although its other messages have gone.
TEST(Agreed, AnEdgeThatWasNeverAnsweredIsStillOne) {
  HandMadeJob job = pipeline(1000, std::nullopt);
  job.call(0, "world", {Fn::Send, 64, 7, 0, 2});
  job.file(0).calls.back().seq = 0;
  job.wait(kThreshold + 5);
  job.sits_in(0, "cudaStreamSynchronize");
  job.sits_in(2, "evaluate");
  const Smaller smaller = judge_smaller(job);
  EXPECT_LT(smaller.calls, 1000u);
  ASSERT_FALSE(smaller.diagnosis.findings.empty());
  EXPECT_EQ(smaller.diagnosis.findings.front().kind, Kind::p2p_unmatched);
  EXPECT_EQ(smaller.diagnosis.findings.front().culprits, std::vector<size_t>{2});
}

TEST(Agreed, DigestsThatAgreeGoWithTheirRows) {
  for (const bool agree : {true, false}) {
    HandMadeJob job = job_of(3);
    job.call_all("world", {}, 1000);
    for (int rank = 0; rank < 3; rank++)
      for (const trace::Call& call : job.file(rank).calls) {
        trace::Digest digest;
        digest.call = call.event;
        digest.fn = call.fn;
        digest.comm = call.comm;
        digest.seq = call.seq;
        digest.output = true;
        digest.value = call.seq + (!agree && rank == 1 && call.seq == 250);
        job.file(rank).digests.push_back(digest);
      }
    complete(job);
    const Smaller smaller = judge_smaller(job);
    size_t digests = 0;
    for (const Process& process : smaller.run->processes) digests += process.file.digests.size();
    EXPECT_LT(digests, 1500u);
    ASSERT_EQ(smaller.diagnosis.findings.empty(), agree);
    if (agree) continue;
    EXPECT_EQ(smaller.diagnosis.findings.front().kind, Kind::result_divergence);
    EXPECT_EQ(smaller.diagnosis.findings.front().seq, 250u);
    EXPECT_EQ(smaller.diagnosis.findings.front().culprits, std::vector<size_t>{1});
  }
}

TEST(Agreed, OfMarksTheFirstAndTheNewestStepsStay) {
  HandMadeJob job = job_of(2);
  job.call_all("world");
  for (const int rank : {0, 1})
    for (uint64_t step = 0; step < 1000; step++) {
      trace::MarkEvent mark;
      mark.kind = trace::kMarkStep;
      mark.value = step;
      job.file(rank).marks.push_back(mark);
      mark.kind = trace::kMarkSample;
      mark.text = "sample " + std::to_string(2 * step + (step == 990 ? 0 : static_cast<uint64_t>(rank)));
      job.file(rank).marks.push_back(mark);
    }
  complete(job);
  const Smaller smaller = judge_smaller(job);
  EXPECT_EQ(smaller.marks, 2u * 2 * (16 + 64));
  ASSERT_FALSE(smaller.diagnosis.findings.empty());
  EXPECT_EQ(smaller.diagnosis.findings.front().kind, Kind::duplicate_data);
  EXPECT_EQ(smaller.diagnosis.findings.front().step, 990u);
}

}  // namespace
}  // namespace lockstep::test
