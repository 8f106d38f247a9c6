// SPDX-License-Identifier: MIT

#include <gtest/gtest.h>

#include "tests/tools/hand_made.h"

namespace lockstep::test {
namespace {

using abi::Fn;

struct Matched {
  lockstep::Run run;
  Table table;
  explicit Matched(const HandMadeJob& job) : run(assemble_runs(job.processes()).back()), table(match(run)) {}
  const Comm& comm(const std::string& name) const {
    for (const Comm& comm : table.comms)
      if (comm.name == name) return comm;
    throw std::logic_error("no communicator " + name);
  }
};

TEST(Match, RowsGoByTheCommunicatorsOwnNumbers) {
  HandMadeJob job(3, {0, 1, 2});
  job.comm("world", {0, 1, 2});
  job.comm("pair", {0, 2});
  job.call(0, "pair", {Fn::AllGather});
  job.call_all("world");
  job.call(2, "pair", {Fn::AllGather});
  const Matched matched(job);
  EXPECT_EQ(matched.table.comms.front().name, "world");
  for (const Member& member : matched.comm("world").members) EXPECT_EQ(op_name(*member.call_at(0)), "AllReduce");
  for (const Member& member : matched.comm("pair").members) EXPECT_EQ(op_name(*member.call_at(0)), "AllGather");
}

TEST(Match, ACommunicatorWithTheSameIdAgainIsAnother) {
  HandMadeJob job(2, {0, 1});
  job.comm("world", {0, 1});
  job.call_all("world", {}, 4);
  for (int rank = 0; rank < 2; rank++) job.teardown(rank, "world", trace::CommState::destroyed);
  job.comm("world", {0, 1});
  const Matched matched(job);
  ASSERT_EQ(matched.table.comms.size(), 2u);
  EXPECT_EQ(matched.table.comms[0].generation + matched.table.comms[1].generation, 1u);
  for (const Comm& comm : matched.table.comms) EXPECT_EQ(comm.members.size(), 2u);
}

TEST(Match, CountersReachBeyondAWrappedRing) {
  HandMadeJob job(2, {0, 1});
  job.comm("world", {0, 1});
  job.call_all("world", {}, 30);
  job.wrap(0, 3);
  job.wrap(1, 0);
  const Matched matched(job);
  const std::vector<Member>& members = matched.comm("world").members;
  EXPECT_EQ(members[0].launched, 30u);
  EXPECT_EQ(members[1].launched, 30u);
  EXPECT_EQ(members[1].call_at(10), nullptr);
  ASSERT_NE(members[1].call_at(29), nullptr);  // from the fixed area
}

TEST(Match, SignaturesLeaveOutWhatAFunctionHasNot) {
  trace::Call call;
  call.fn = static_cast<uint16_t>(Fn::AllGather);
  call.redop = 3;
  call.peer = 5;
  EXPECT_FALSE(signature_of(call).redop.has_value());
  EXPECT_FALSE(signature_of(call).root.has_value());
  call.fn = static_cast<uint16_t>(Fn::Reduce);
  EXPECT_EQ(signature_of(call).redop, "min");
  EXPECT_EQ(signature_of(call).root, 5);
}

TEST(Match, AnOpenGroupHoldsItsCallsBackUntilItCloses) {
  HandMadeJob job(1, {0});
  job.comm("world", {0}, trace::CommState::live, 1);
  job.call(0, "world");
  job.call(0, "world", {Fn::AllReduce, 8, 7, 0, -1, true, 0, 4});
  job.call(0, "world", {Fn::AllReduce, 8, 7, 0, -1, true, 0, 4});
  EXPECT_EQ(Matched(job).comm("world").members[0].launched, 1u);
  EXPECT_EQ(Matched(job).comm("world").members[0].called, 3u);
  trace::Call end;
  end.fn = static_cast<uint16_t>(Fn::GroupEnd);
  end.tid = job.file(0).calls.back().tid;
  end.group = 4;
  end.group_depth = 1;
  end.event = 99;
  job.file(0).calls.push_back(end);
  EXPECT_EQ(Matched(job).comm("world").members[0].launched, 3u);
}

}  // namespace
}  // namespace lockstep::test
