// SPDX-License-Identifier: MIT
//
// No harm: whatever happens to the job or to its trace, the job's own output, exit status and errno are what they are without
// the shim. Each of these runs a client with and without it, and compares.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::TempFolder;
using trace::TraceFile;

const std::string kClient = SHIM_CLIENT, kShim = SHIM_LIBRARY, kPlugin = SHIM_PLUGIN, kOther = OTHER_PRELOAD,
                  kSlowDisk = SLOW_DISK;

class NoHarm : public testing::Test {
 protected:
  std::string traces() const { return folder_.path() + "/traces"; }
  // Ends alike and prints alike; gives back the run with the shim.
  Outcome compare(const std::vector<std::string>& arguments, const Environment& extra = {}) {
    Environment environment = extra;
    environment["LOCKSTEP_DIR"] = traces();  // some clients look for it
    const Outcome plain = run(arguments, environment, 60);
    std::error_code none;
    std::filesystem::remove_all(traces(), none);
    if (environment["LD_PRELOAD"].empty()) environment["LD_PRELOAD"] = kShim;
    const Outcome traced = run(arguments, environment, 60);
    EXPECT_FALSE(plain.timed_out || traced.timed_out);
    EXPECT_EQ(traced.status, plain.status) << traced.err;
    EXPECT_EQ(traced.out, plain.out);
    return traced;
  }
  std::vector<TraceFile> read_all() const {
    std::vector<TraceFile> out;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(traces(), none)) {
      if (entry.path().extension() != trace::kFileSuffix) continue;
      Result<TraceFile> file = trace::read_trace(entry.path());
      EXPECT_TRUE(file) << file.error();
      if (file) out.push_back(*file);
    }
    return out;
  }
  static size_t count(const TraceFile& file, uint64_t elements) {
    return static_cast<size_t>(
        std::count_if(file.calls.begin(), file.calls.end(), [&](const Call& call) { return call.count == elements; }));
  }
  TempFolder folder_;
};

TEST_F(NoHarm, ADiskThatFillsUp) {
  // In blocks of 512 bytes: room for the fixed areas, the arena's place and two of sixty-four megabytes of events.
  const Outcome outcome = compare({"/bin/sh", "-c", "ulimit -f 40000; exec " + kClient + " burst 60000"});
  EXPECT_EQ(outcome.err, "");
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_GT(files[0].overwritten, 0u) << "the ring should have been as short as the disk";
  EXPECT_EQ(files[0].torn, 0u);
  EXPECT_EQ(files[0].comms.at(0).coll_called, 60000u);
}

TEST_F(NoHarm, ADiskThatIsFullAlready) {
  const Outcome outcome = compare({"/bin/sh", "-c", "ulimit -f 1000; exec " + kClient + " burst 1000"});
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(read_all().empty());
}

TEST_F(NoHarm, ASmallFileSystemInMemory) {
  const std::string mount = "mkdir -p " + folder_.path() + "/small && mount -t tmpfs -o size=4m none " + folder_.path() + "/small";
  if (!run({"/usr/bin/unshare", "-m", "/bin/sh", "-c", mount}, {}).exited_with(0))
    GTEST_SKIP() << "this machine lets nobody mount a file system";
  // The trace is read inside, while it is there.
  const std::string command = mount + " && LOCKSTEP_DIR=" + folder_.path() + "/small LD_PRELOAD=" + kShim + " " + kClient +
                              " burst 60000 && cp --sparse=always " + folder_.path() + "/small/*.lstrace " + folder_.path();
  const Outcome outcome = run({"/usr/bin/unshare", "-m", "/bin/sh", "-c", command}, {}, 60);
  EXPECT_TRUE(outcome.exited_with(0)) << outcome.err;
  EXPECT_EQ(outcome.out, run({kClient, "burst", "60000"}, {}).out);
  ASSERT_EQ(folder_.traces().size(), 1u);
  const Result<TraceFile> file = trace::read_trace(folder_.traces()[0]);
  ASSERT_TRUE(file) << file.error();
  EXPECT_GT(file->overwritten, 0u);
  EXPECT_EQ(file->torn, 0u);
}

// A file system that nobody may write to, not even root.
TEST_F(NoHarm, AReadOnlyPlace) {
  const std::string place = folder_.path() + "/frozen";
  const std::string mount = "mkdir -p " + place + " && mount -t tmpfs -o size=4m,ro none " + place;
  if (!run({"/usr/bin/unshare", "-m", "/bin/sh", "-c", mount}, {}).exited_with(0))
    GTEST_SKIP() << "this machine lets nobody mount a file system";
  const Outcome outcome = run({"/usr/bin/unshare", "-m", "/bin/sh", "-c",
                               mount + " && LOCKSTEP_DIR=" + place + "/traces LD_PRELOAD=" + kShim + " exec " + kClient + " results"},
                              {}, 60);
  const Outcome plain = run({kClient, "results"}, {});
  EXPECT_EQ(outcome.status, plain.status);
  EXPECT_EQ(outcome.out, plain.out);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("Read-only file system"), std::string::npos) << outcome.err;
}

// Extending the file takes three seconds, each time. The calls outrun the helper thread; what they write then is counted as
// dropped, and what stands outside of the ring goes on.
TEST_F(NoHarm, ADiskThatIsSlow) {
  const Outcome outcome = compare({kClient, "burst-slow", "12288"},
                                  {{"LD_PRELOAD", kShim + " " + kSlowDisk}, {"SLOW_DISK_MS", "3000"}});
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out, "12288 0\n");
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].comms.at(0).coll_called, 12288u);
  EXPECT_EQ(files[0].torn, 0u);
  EXPECT_GT(files[0].dropped, 0u) << "nothing was tested";
  EXPECT_LE(files[0].calls.size() + files[0].dropped, 12288u + 2 + trace::kBlockSlots);
}

TEST_F(NoHarm, AThousandCommunicators) { compare({kClient, "communicators", "1000"}); }

TEST_F(NoHarm, ExceptionsAboveAHookedCall) { compare({kClient, "exceptions"}); }

TEST_F(NoHarm, EveryEndOfAProcess) {
  for (const char* end : {"exit", "underscore-exit", "Exit", "quick-exit", "exit-inside"}) compare({kClient, end, "7"});
}

TEST_F(NoHarm, WithoutLibunwind) {
  trace::spill(folder_.path() + "/libunwind.so.8", "not a library");
  EXPECT_EQ(compare({kClient, "results"}, {{"LD_LIBRARY_PATH", folder_.path()}}).err, "");
}


TEST_F(NoHarm, AFolderThatIsRemovedMeanwhile) {
  const Outcome outcome = compare({kClient, "remove-folder"});
  EXPECT_EQ(outcome.err, "");
}

TEST_F(NoHarm, AForkInTheMiddleOfACall) {
  compare({kClient, "fork-inside"});
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
  compare({kClient, "dlclose", kPlugin});
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(count(files[0], 42), 3u);
}

// A thread that waits in read() sees its own signals, with and without SA_RESTART, and none of ours: a snapshot is taken
// meanwhile.
class Signals : public NoHarm, public testing::WithParamInterface<const char*> {};
TEST_P(Signals, AreTheJobsOwn) {
  compare({kClient, "signals", GetParam()}, {{"LOCKSTEP_HANG_SECONDS", "0.3"}});
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_FALSE(files[0].snapshots.empty()) << "nothing was tested";
}
INSTANTIATE_TEST_SUITE_P(All, Signals, testing::Values("restart", "interrupt"),
                         [](const auto& at) { return std::string(at.param); });

TEST_F(NoHarm, AnotherPreloadBefore) {
  const Outcome alone = run({kClient, "results"}, {{"LD_PRELOAD", kOther}});
  const Outcome both = compare({kClient, "results"}, {{"LD_PRELOAD", kOther + " " + kShim}});
  EXPECT_EQ(both.out, alone.out);
  EXPECT_EQ(both.err, alone.err);
  EXPECT_EQ(read_all().size(), 1u);
}

TEST_F(NoHarm, AnotherPreloadAfter) {
  const Outcome alone = run({kClient, "results"}, {{"LD_PRELOAD", kOther}});
  const Outcome both = compare({kClient, "results"}, {{"LD_PRELOAD", kShim + " " + kOther}});
  EXPECT_EQ(both.out, alone.out);
  EXPECT_EQ(both.err, alone.err);
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(count(files[0], 8), 1u);
}

TEST_F(NoHarm, NumbersStayRightWhenThreadsShareACommunicator) {
  compare({kClient, "share", "4"});
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 1u);
  std::vector<uint64_t> numbers;
  for (const Call& call : files[0].calls)
    if (call.fn == static_cast<uint16_t>(abi::Fn::AllReduce)) numbers.push_back(call.seq);
  std::sort(numbers.begin(), numbers.end());
  ASSERT_EQ(numbers.size(), 4u * 20000);
  for (size_t i = 0; i < numbers.size(); i++) ASSERT_EQ(numbers[i], i) << "a number was given twice or not at all";
  EXPECT_EQ(files[0].comms.at(0).coll_called, numbers.size());
  EXPECT_EQ(files[0].comms.at(0).coll_returned, numbers.size());
}

TEST_F(NoHarm, FullModeKeepsAllEvents) {
  compare({kClient, "burst", "100000"}, {{"LOCKSTEP_MODE", "full"}, {"LOCKSTEP_RING_MB", "1"}});
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].header.mode, trace::TraceMode::full);
  EXPECT_EQ(files[0].calls.size(), 100002u);
  EXPECT_EQ(files[0].overwritten + files[0].dropped, 0u);
}

TEST_F(NoHarm, FullModeStopsAtItsBound) {
  compare({kClient, "burst", "100000"}, {{"LOCKSTEP_MODE", "full"}, {"LOCKSTEP_FULL_MB", "2"}});
  const std::vector<TraceFile> files = read_all();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].calls.size(), 2 * trace::kSegmentBytes / sizeof(trace::Record));
  EXPECT_GE(files[0].dropped, 100002u - files[0].calls.size());
  EXPECT_LT(files[0].dropped, 100002u - files[0].calls.size() + 16);
  EXPECT_EQ(files[0].comms.at(0).coll_called, 100000u) << "what stands outside of the ring goes on";
}

}  // namespace
}  // namespace lockstep
