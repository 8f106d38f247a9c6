// SPDX-License-Identifier: MIT
//
// Hangs: the operation that is named, the request for snapshots, and the stacks in them.

#include "tests/interpose/shim_fixture.h"

namespace lockstep {
namespace {

using trace::TraceFile;

std::string request_in(const std::string& folder) { return trace::slurp(folder + "/" + trace::kSnapshotRequestFile); }

TEST_F(Shim, AnOpenCallIsNamedAndAsksForASnapshot) {
  Process process({kClient, "quiet", "hang"}, environment({{"LOCKSTEP_HANG_SECONDS", "0.4"}}));
  ASSERT_TRUE(process.wait_for("has been in AllReduce #1 on comm-", 10)) << process.outcome().err;
  usleep(500000);
  EXPECT_NE(request_in(folder_.path()).find("lockstep-snapshot 1 "), std::string::npos);
  const TraceFile file = only_trace();
  EXPECT_EQ(trace::look_alive(file), trace::Liveness::alive);
  EXPECT_TRUE(file.heartbeat_known);
  ASSERT_EQ(file.threads.size(), 1u);
  EXPECT_EQ(file.threads[0].state, 'S');
  EXPECT_TRUE(file.threads[0].open_call);
  const std::vector<trace::Snapshot> taken = snapshots(file);
  ASSERT_EQ(taken.size(), 1u) << "one request, one snapshot";
  EXPECT_EQ(taken[0].why, 'r');
  EXPECT_FALSE(taken[0].pcs.empty());
  kill(process.pid(), SIGKILL);
  EXPECT_TRUE(process.finish(5).signalled_by(SIGKILL));
  EXPECT_EQ(process.outcome().err.find("AllReduce"), process.outcome().err.rfind("AllReduce")) << "said more than once";
}

// The stack taken from outside of a thread must end as the one its own call recorded on the way in.
class SnapshotOf : public Shim,
                   public testing::WithParamInterface<std::tuple<std::string, const char*, trace::SnapshotSource>> {};
TEST_P(SnapshotOf, AThreadEndsInTheStackItsCallRecorded) {
  const auto& [program, how, source] = GetParam();
  Process process({program, "quiet", how}, environment({{"LOCKSTEP_HANG_SECONDS", "0.3"}}));
  ASSERT_TRUE(process.wait_for("AllReduce", 10)) << process.outcome().err;
  usleep(400000);
  const TraceFile file = only_trace();
  ASSERT_EQ(snapshots(file).size(), 1u);
  EXPECT_EQ(snapshots(file)[0].source, source);
  const std::vector<uint64_t> taken = snapshots(file)[0].pcs;
  const std::vector<uint64_t> recorded = file.stack(file.calls.back().stack);
  ASSERT_GT(recorded.size(), 3u);
  ASSERT_GT(taken.size(), recorded.size());
  EXPECT_TRUE(std::equal(recorded.rbegin(), recorded.rend(), taken.rbegin()));
}
std::vector<SnapshotOf::ParamType> threads_to_look_at() {
  std::vector<SnapshotOf::ParamType> cases;
  for (const std::string& client : {std::string(kClient), std::string(kClientWithFramePointers)}) {
    // With the address sanitizer all frames need the frame pointer, which nobody tells of a sleeping thread.
#ifndef __SANITIZE_ADDRESS__
    cases.emplace_back(client, "hang", trace::SnapshotSource::syscall_state);
#endif
    // The thread sanitizer holds a signal back until the next call it intercepts; a spinning thread makes none.
#ifndef __SANITIZE_THREAD__
    cases.emplace_back(client, "spin-inside", trace::SnapshotSource::signal);
#endif
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, SnapshotOf, testing::ValuesIn(threads_to_look_at()), [](const auto& at) {
  std::string name = std::get<1>(at.param) + std::string(std::get<0>(at.param) == kClient ? "" : "_frame_pointers");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_F(Shim, AQuietProcessAsksSilently) {
  Process process({kClient, "quiet", "sleep"}, environment({{"LOCKSTEP_HANG_SECONDS", "0.3"}}));
  ASSERT_TRUE(process.wait_for("ready", 10));
  usleep(900000);
  const TraceFile file = only_trace();
  ASSERT_EQ(snapshots(file).size(), 1u);
  EXPECT_EQ(snapshots(file)[0].why, 'q');
  kill(process.pid(), SIGKILL);
  EXPECT_EQ(process.finish(5).err, "ready\n");
}

TEST_F(Shim, ACulpritShowsItsStackWhenAPeerAsks) {
  Process culprit({kClient, "quiet", "sleep"}, environment({{"LOCKSTEP_HANG_SECONDS", "4"}}));
  ASSERT_TRUE(culprit.wait_for("ready", 10));
  Process victim({kClient, "quiet", "hang"}, environment({{"LOCKSTEP_HANG_SECONDS", "0.3"}}));
  ASSERT_TRUE(victim.wait_for("AllReduce", 10));
  usleep(1500000);
  unsigned with_snapshot = 0;
  for (const std::string& path : folder_.traces()) {
    Result<TraceFile> file = trace::read_trace(path);
    ASSERT_TRUE(file);
    if (file->header.pid != culprit.pid()) continue;
    with_snapshot += static_cast<unsigned>(snapshots(*file).size());
    for (const trace::Snapshot& snapshot : file->snapshots) EXPECT_EQ(snapshot.why, 'r');
  }
  EXPECT_EQ(with_snapshot, 1u);
}

}  // namespace
}  // namespace lockstep
