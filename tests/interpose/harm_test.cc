// SPDX-License-Identifier: MIT
//
// No harm: whatever the job does, its own output, exit status and errno are what they are without the shim. Each of
// these runs a client with and without it, and compares; docs/shim.md has the list of what may go wrong, and where it
// is tested.

#include "tests/interpose/no_harm.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::TraceFile;

const std::string kClient = SHIM_CLIENT, kHarm = HARM_CLIENT, kErrno = ERRNO_CLIENT, kShim = SHIM_LIBRARY,
                  kPlugin = SHIM_PLUGIN, kOther = OTHER_PRELOAD;

TEST_F(NoHarm, TenThousandThreads) {
  const Outcome outcome = compare({kHarm, "threads", "10000"});
  EXPECT_EQ(outcome.out, "10000 results, errno changed 0 times\n");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(NoHarm, AThousandCommunicators) {
  EXPECT_EQ(compare({kHarm, "communicators", "1000"}).out, "1000 destroyed\n1001 results, errno changed 0 times\n");
  EXPECT_EQ(only_trace().comms.size(), 1001u);
}

TEST_F(NoHarm, ExceptionsAboveAHookedCall) { EXPECT_EQ(compare({kClient, "exceptions"}).out, "3 3\n"); }

TEST_F(NoHarm, EveryEndOfAProcess) {
  for (const char* end : {"exit", "underscore-exit", "Exit", "quick-exit", "exit-inside"})
    EXPECT_TRUE(compare({kClient, end, "7"}).exited_with(7)) << end;
}

TEST_F(NoHarm, AnExitWhileAnotherThreadIsInsideACollective) {
  EXPECT_TRUE(compare({kHarm, "exit-beside", "7"}).exited_with(7));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.exit_kind, trace::ExitKind::exit);
  EXPECT_EQ(count(file, 1200), 1u);
  EXPECT_FALSE(file.calls.back().returned);
}

TEST_F(NoHarm, WithoutLibunwind) {
  trace::spill(folder_.path() + "/libunwind.so.8", "not a library");
  EXPECT_EQ(compare({kClient, "results"}, {{"LD_LIBRARY_PATH", folder_.path()}}).err, "");
  EXPECT_EQ(compare({kHarm, "threads", "100"}, {{"LD_LIBRARY_PATH", folder_.path()}}).err, "");
}

// A program asks an older libnccl for functions it does not have, and must be told so.
TEST_F(NoHarm, ASymbolThatLibncclDoesNotHave) {
  const Outcome outcome = compare({kHarm, "older-library"});
  EXPECT_NE(outcome.out.find("ncclAllReduce 1"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("ncclCommGrow 0"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.err, "");
}

TEST_F(NoHarm, ForksBetweenCalls) {
  compare({kHarm, "forks"});
  EXPECT_EQ(read_all().size(), 2u);
}

TEST_F(NoHarm, AForkInTheMiddleOfACall) {
  compare({kHarm, "fork-inside"});
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 1u) << "the child made no communicator, so it has no file";
  EXPECT_EQ(count(files[0], 1500), 1u);
  EXPECT_EQ(count(files[0], 31), 1u) << "the parent's next call";
  EXPECT_EQ(count(files[0], 30), 0u) << "the child's";
  for (const Call& call : files[0].calls) EXPECT_TRUE(call.returned);
  EXPECT_EQ(files[0].torn, 0u);
}

TEST_F(NoHarm, ExecStartsAnew) {
  compare({kClient, "exec"});
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].header.pid, files[1].header.pid);
}

TEST_F(NoHarm, ALibraryThatIsClosedAndOpenedAgain) {
  compare({kHarm, "dlclose", kPlugin});
  EXPECT_EQ(count(only_trace(), 42), 3u);
}

// A thread that waits in read() sees its own signals, with and without SA_RESTART, and none of ours: a snapshot is
// taken meanwhile.
class Signals : public NoHarm, public testing::WithParamInterface<const char*> {};
TEST_P(Signals, AreTheJobsOwn) {
  compare({kHarm, "signals", GetParam()}, {{"LOCKSTEP_HANG_SECONDS", "0.3"}});
  EXPECT_FALSE(only_trace().snapshots.empty()) << "nothing was tested";
}
INSTANTIATE_TEST_SUITE_P(All, Signals, testing::Values("restart", "interrupt"),
                         [](const auto& at) { return std::string(at.param); });

TEST_F(NoHarm, AnotherPreloadBefore) {
  const Outcome alone = run({kClient, "results"}, {{"LD_PRELOAD", kOther}});
  const Outcome both = compare({kClient, "results"}, {{"LD_PRELOAD", kOther + " " + kShim}});
  EXPECT_EQ(both.out, alone.out);
  EXPECT_EQ(both.err, alone.err);
  EXPECT_EQ(count(only_trace(), 8), 1u);
}

TEST_F(NoHarm, AnotherPreloadAfter) {
  const Outcome alone = run({kClient, "results"}, {{"LD_PRELOAD", kOther}});
  const Outcome both = compare({kClient, "results"}, {{"LD_PRELOAD", kShim + " " + kOther}});
  EXPECT_EQ(both.out, alone.out);
  EXPECT_EQ(both.err, alone.err);
  EXPECT_EQ(count(only_trace(), 8), 1u);
}

TEST_F(NoHarm, NumbersStayRightWhenThreadsShareACommunicator) {
  compare({kHarm, "share", "4"});
  const TraceFile file = only_trace();
  std::vector<uint64_t> numbers;
  for (const Call& call : file.calls)
    if (call.fn == static_cast<uint16_t>(abi::Fn::AllReduce)) numbers.push_back(call.seq);
  std::sort(numbers.begin(), numbers.end());
  ASSERT_EQ(numbers.size(), 4u * 20000);
  for (size_t i = 0; i < numbers.size(); i++) ASSERT_EQ(numbers[i], i) << "a number was given twice or not at all";
  EXPECT_EQ(file.comms.at(0).coll_called, numbers.size());
  EXPECT_EQ(file.comms.at(0).coll_returned, numbers.size());
}

// --- errno
// -------------------------------------------------------------------------------------------------------------------

// Every function of the list, in all situations, with NCCL and a driver that spoil errno when the shim asks them.
class Errno : public NoHarm, public testing::WithParamInterface<std::pair<const char*, Environment>> {};
TEST_P(Errno, IsTheJobsOwnAfterEveryHookedCall) {
  const Outcome outcome = compare({kErrno, "20000"}, GetParam().second);
  EXPECT_NE(outcome.out.find(" calls, 0 wrong\n"), std::string::npos) << outcome.out.substr(0, 2000);
  EXPECT_TRUE(outcome.exited_with(0));
  uint64_t called = 0;
  for (const trace::CommInfo& comm : only_trace().comms) called += comm.coll_called;
  EXPECT_GT(called, 20000u) << "this looked at something else";
}
INSTANTIATE_TEST_SUITE_P(
    All, Errno,
    testing::Values(std::pair("default", Environment{}),
                    std::pair("all_on", Environment{{"LOCKSTEP_DIGEST", "1"}, {"LOCKSTEP_MODE", "full"}}),
                    std::pair("no_states", Environment{{"LOCKSTEP_STATES", "0"}}),
                    std::pair("no_stacks", Environment{{"LOCKSTEP_STACKS", "0"}}),
                    std::pair("full_file", Environment{{"LOCKSTEP_MODE", "full"}, {"LOCKSTEP_FULL_MB", "1"}}),
                    std::pair("spoiling_disk",
                              Environment{{"LD_PRELOAD", kShim + " " SLOW_DISK}, {"SLOW_DISK_MS", "0"}})),
    [](const auto& at) { return std::string(at.param.first); });

// Where it records nothing at all.
TEST_F(NoHarm, ErrnoWithoutRecording) {
  const std::string file = folder_.path() + "/file";
  trace::spill(file, "");
  const Outcome refused = run({kErrno}, {{"LD_PRELOAD", kShim}, {"LOCKSTEP_DIR", file}});
  EXPECT_NE(refused.out.find(" calls, 0 wrong\n"), std::string::npos) << refused.out.substr(0, 2000);
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  const Outcome off = run({kErrno}, {{"LD_PRELOAD", kShim}, {"LOCKSTEP", "0"}});
  EXPECT_NE(off.out.find(" calls, 0 wrong\n"), std::string::npos) << off.out.substr(0, 2000);
}

}  // namespace
}  // namespace lockstep
