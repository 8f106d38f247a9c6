// SPDX-License-Identifier: MIT
//
// Every way a process may end is on record, and still ends it.

#include "tests/interpose/shim_fixture.h"

namespace lockstep {
namespace {

using abi::Fn;
using trace::TraceFile;

TEST_F(Shim, ExitStatusIsRecorded) {
  EXPECT_TRUE(client({"exit", "7"}).exited_with(7));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.exit_kind, trace::ExitKind::exit);
  EXPECT_EQ(file.exit_code, 7);
}

class EndsWithoutHandlers : public Shim, public testing::WithParamInterface<const char*> {};
TEST_P(EndsWithoutHandlers, IsRecordedAllTheSame) {
  EXPECT_TRUE(client({GetParam(), "7"}).exited_with(7));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.exit_kind, trace::ExitKind::exit);
  EXPECT_EQ(file.exit_code, 7);
}
INSTANTIATE_TEST_SUITE_P(All, EndsWithoutHandlers,
                         testing::Values("underscore-exit", "Exit", "quick-exit", "exit-inside"), [](const auto& at) {
                           std::string name = at.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// It runs in its parent's memory until it ends itself.
TEST_F(Shim, TheChildOfAVforkEndsNobodyElse) {
  const Outcome outcome = client({"vfork", "7"});
  EXPECT_TRUE(outcome.signalled_by(SIGKILL));
  EXPECT_EQ(outcome.out, "7\n");
  EXPECT_EQ(only_trace().exit_kind, trace::ExitKind::none);
}

class FatalSignal : public Shim, public testing::WithParamInterface<std::pair<const char*, int>> {};
TEST_P(FatalSignal, IsRecordedAndStillKills) {
  const auto [how, signal] = GetParam();
  EXPECT_TRUE(client({how, std::to_string(signal)}).signalled_by(signal));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.exit_kind, trace::ExitKind::fatal_signal);
  EXPECT_EQ(file.exit_code, signal);
}
INSTANTIATE_TEST_SUITE_P(All, FatalSignal,
                         testing::Values(std::pair{"signal", SIGTERM}, std::pair{"signal", SIGSEGV},
                                         std::pair{"abort", SIGABRT}, std::pair{"fault", SIGSEGV}),
                         [](const auto& at) { return std::string(at.param.first) + std::to_string(at.param.second); });

TEST_F(Shim, ACallThatNeverReturnsIsOnRecord) {
  EXPECT_TRUE(client({"call", "1400"}).signalled_by(SIGSEGV));
  const TraceFile file = only_trace();
  ASSERT_EQ(of(file, Fn::AllReduce).size(), 1u);
  EXPECT_FALSE(of(file, Fn::AllReduce)[0].returned);
  ASSERT_EQ(file.comms.size(), 1u);
  ASSERT_EQ(file.comms[0].recent.size(), 1u);
  EXPECT_FALSE(file.comms[0].recent[0].returned);
  EXPECT_EQ(file.comms[0].coll_called, 1u);
  EXPECT_EQ(file.comms[0].coll_returned, 0u);
}

}  // namespace
}  // namespace lockstep
