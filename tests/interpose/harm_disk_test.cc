// SPDX-License-Identifier: MIT
//
// No harm by the place the trace is written to: full, small, read-only, slow, gone.

#include "tests/interpose/no_harm.h"

namespace lockstep {
namespace {

using trace::TraceFile;

const std::string kClient = SHIM_CLIENT, kHarm = HARM_CLIENT, kShim = SHIM_LIBRARY, kSlowDisk = SLOW_DISK;

class Disk : public NoHarm {
 protected:
  // A file system of its own, for the shell command and nobody else; "" where this machine lets nobody mount one.
  std::string mounted(const std::string& options) const {
    const std::string place = folder_.path() + "/place";
    const std::string mount = "mkdir -p " + place + " && mount -t tmpfs -o " + options + " none " + place;
    return run({"/usr/bin/unshare", "-m", "/bin/sh", "-c", mount}, {}).exited_with(0) ? mount : "";
  }
  Outcome inside(const std::string& mount, const std::string& command) const {
    return run({"/usr/bin/unshare", "-m", "/bin/sh", "-c",
                mount + " && LOCKSTEP_DIR=" + folder_.path() + "/place/traces LD_PRELOAD=" + kShim + " " + command},
               {}, 60);
  }
};

TEST_F(Disk, ThatFillsUp) {
  // In blocks of 512 bytes: room for the fixed areas, the arena's place and two of sixty-four megabytes of events.
  const Outcome outcome = compare({"/bin/sh", "-c", "ulimit -f 40000; exec " + kHarm + " burst 60000"});
  EXPECT_EQ(outcome.err, "");
  const TraceFile file = only_trace();
  EXPECT_GT(file.overwritten, 0u) << "the ring should have been as short as the disk";
  EXPECT_EQ(file.torn, 0u);
  EXPECT_EQ(file.comms.at(0).coll_returned, 60000u - 600) << "each hundredth call fails";
}

TEST_F(Disk, ThatIsFullAlready) {
  const Outcome outcome = compare({"/bin/sh", "-c", "ulimit -f 1000; exec " + kHarm + " burst 1000"});
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(read_all().empty());
}

TEST_F(Disk, OfAFewMegabytesInMemory) {
  const std::string mount = mounted("size=4m");
  if (mount.empty()) GTEST_SKIP() << "this machine lets nobody mount a file system";
  // The trace is read inside, while it is there.
  const Outcome outcome = inside(mount, kHarm + " burst 60000 && cp --sparse=always " + folder_.path() +
                                            "/place/traces/*.lstrace " + folder_.path());
  EXPECT_TRUE(outcome.exited_with(0)) << outcome.err;
  EXPECT_EQ(outcome.out, run({kHarm, "burst", "60000"}, {}).out);
  const TraceFile file = folder_.only_trace();
  EXPECT_GT(file.overwritten, 0u);
  EXPECT_EQ(file.torn, 0u);
}

// That nobody may write to, not even root.
TEST_F(Disk, ThatIsReadOnly) {
  const std::string mount = mounted("size=4m,ro");
  if (mount.empty()) GTEST_SKIP() << "this machine lets nobody mount a file system";
  const Outcome outcome = inside(mount, "exec " + kClient + " results");
  const Outcome plain = run({kClient, "results"}, {});
  EXPECT_EQ(outcome.status, plain.status);
  EXPECT_EQ(outcome.out, plain.out);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("Read-only file system"), std::string::npos) << outcome.err;
}

// Extending the file takes three seconds, each time. The calls outrun the helper thread; what they write then is
// counted as dropped, and what stands outside of the ring goes on.
TEST_F(Disk, ThatIsSlow) {
  const Outcome outcome =
      compare({kHarm, "burst-slow", "12288"}, {{"LD_PRELOAD", kShim + " " + kSlowDisk}, {"SLOW_DISK_MS", "3000"}});
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out, "12288 results, errno changed 0 times\n0 slow\n");
  const TraceFile file = only_trace();
  EXPECT_EQ(file.comms.at(0).coll_called, 12288u);
  EXPECT_EQ(file.torn, 0u);
  EXPECT_GT(file.dropped, 0u) << "nothing was tested";
  EXPECT_LE(file.calls.size() + file.dropped, 12288u + 2 + trace::kBlockSlots);
}

TEST_F(Disk, WhoseFolderIsRemovedMeanwhile) {
  const Outcome outcome = compare({kHarm, "remove-folder"});
  EXPECT_EQ(outcome.err, "");
  EXPECT_FALSE(std::filesystem::exists(traces()));
}

TEST_F(Disk, WhoseDescriptorTheJobCloses) {
  const Outcome outcome = compare({kHarm, "close-descriptors"});
  EXPECT_EQ(outcome.out, "200 files of its own are as it wrote them\n30001 results, errno changed 0 times\n");
  EXPECT_EQ(outcome.err, "");
  const TraceFile file = only_trace();
  EXPECT_GT(file.overwritten, 0u) << "the ring cannot have grown";
  EXPECT_EQ(file.comms.at(0).coll_called, 30001u);
}

TEST_F(Disk, ThatIsLargeTakesAllEventsInFullMode) {
  compare({kHarm, "burst", "100000"}, {{"LOCKSTEP_MODE", "full"}, {"LOCKSTEP_RING_MB", "1"}});
  const TraceFile file = only_trace();
  EXPECT_EQ(file.header.mode, trace::TraceMode::full);
  EXPECT_EQ(file.calls.size(), 100002u);
  EXPECT_EQ(file.overwritten + file.dropped, 0u);
}

TEST_F(Disk, GivesFullModeNoMoreThanItsBound) {
  compare({kHarm, "burst", "100000"}, {{"LOCKSTEP_MODE", "full"}, {"LOCKSTEP_FULL_MB", "2"}});
  const TraceFile file = only_trace();
  EXPECT_EQ(file.calls.size(), 2 * trace::kSegmentBytes / sizeof(trace::Record));
  EXPECT_GE(file.dropped, 100002u - file.calls.size());
  EXPECT_LT(file.dropped, 100002u - file.calls.size() + 16);
  EXPECT_EQ(file.comms.at(0).coll_returned, 100000u - 1000) << "what stands outside of the ring goes on";
}

}  // namespace
}  // namespace lockstep
