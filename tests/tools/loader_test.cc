// SPDX-License-Identifier: MIT
//
// Folders as users have them: missing, empty, half unreadable; one process with many ranks, one folder with many runs.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/interpose/trace_fixture.h"
#include "tests/tools/hand_made.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

class Loader : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) { std::ofstream(path(name), std::ios::binary) << text; }
  // A whole, empty trace; the file name is the writer's.
  std::string make_trace() {
    trace::Trace trace = {};
    trace::FileHeader header = trace::test_header();
    header.env_rank = made_;
    header.env_world_size = 2;
    header.pid_start_ticks += static_cast<uint64_t>(made_++);
    const std::vector<std::string> before = folder_.traces();
    EXPECT_EQ(trace::create(trace, folder_.path().c_str(), header, trace::clocks_now(), trace::clocks_now,
                            trace::kSegmentBytes)
                  .what,
              nullptr);
    trace::unmap(trace);
    for (const std::string& file : folder_.traces())
      if (std::find(before.begin(), before.end(), file) == before.end()) return file;
    return "";
  }
  trace::TempFolder folder_;
  int made_ = 0;
};

TEST_F(Loader, AMissingFolderAnEmptyOneAndAFile) {
  Result<Job> missing = load_job(path("nowhere"));
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().find("no such folder"), std::string::npos);
  Result<Job> empty = load_job(folder_.path());
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().find("no trace files"), std::string::npos);
  write("file", "x");
  Result<Job> file = load_job(path("file"));
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().find("is a file"), std::string::npos);
}

TEST_F(Loader, BadFilesAreNamedAndTheRestIsUsed) {
  const std::string good = make_trace(), cut = make_trace(), newer = make_trace();
  fs::resize_file(cut, 1000);
  std::fstream(newer, std::ios::in | std::ios::out | std::ios::binary).seekp(8) << '\x63';
  write("foreign.lstrace", "this is a letter to my aunt");
  write("empty.lstrace", "");
  Result<Job> job = load_job(folder_.path());
  ASSERT_TRUE(job) << job.error();
  ASSERT_EQ(job->left_out.size(), 4u);
  for (const char* name : {"foreign.lstrace", "empty.lstrace"})
    EXPECT_TRUE(std::any_of(job->left_out.begin(), job->left_out.end(),
                            [&](const std::string& sentence) { return sentence.find(name) != std::string::npos; }));
  EXPECT_EQ(job->runs.back().processes.size(), 1u);
  EXPECT_EQ(job->runs.back().missing, std::vector<int>{1});
}

TEST_F(Loader, OnlyBadFilesIsAnError) {
  write("a.lstrace", "no");
  Result<Job> job = load_job(folder_.path());
  ASSERT_FALSE(job);
  EXPECT_NE(job.error().find("a.lstrace"), std::string::npos);
}

TEST_F(Loader, SubFoldersAreRead) {
  const std::string good = make_trace();
  fs::create_directories(path("node1"));
  fs::rename(good, path("node1/moved.lstrace"));
  Result<Job> job = load_job(folder_.path());
  ASSERT_TRUE(job) << job.error();
  EXPECT_EQ(job->runs.back().ranks.front().number, 0);
}

// --- ranks
// ---------------------------------------------------------------------------------------------------------------------

trace::CommInfo comm_info(uint32_t serial, uint64_t id, int rank, int nranks, uint32_t tid, int device) {
  trace::CommInfo info;
  info.serial = serial;
  info.id = id;
  info.rank = rank;
  info.nranks = nranks;
  info.creator_tid = tid;
  info.device = device;
  info.state = trace::CommState::live;
  return info;
}

TEST(Ranks, ThreadsOfOneProcess) {
  HandMadeJob job(1, {0});
  trace::TraceFile& file = job.file(0);
  file.header.env_rank = -1;
  for (int rank = 0; rank < 3; rank++)
    file.comms.push_back(
        comm_info(static_cast<uint32_t>(rank + 1), 77, 2 - rank, 3, static_cast<uint32_t>(100 + rank), rank));
  file.comms.push_back(comm_info(4, 88, 0, 2, 101, -1));  // thread 101 holds rank 1
  file.comms.push_back(comm_info(5, 88, 1, 2, 999, 2));   // by device: rank 0
  const lockstep::Run run = assemble_runs(job.processes()).back();
  ASSERT_EQ(run.ranks.size(), 3u);
  EXPECT_EQ(run.ranks[0].comms, (std::vector<uint32_t>{3, 5}));
  EXPECT_EQ(run.ranks[1].comms, (std::vector<uint32_t>{2, 4}));
  EXPECT_EQ(run.ranks[1].tids, std::vector<uint32_t>{101});
  EXPECT_EQ(run.ranks[2].comms, std::vector<uint32_t>{1});
  EXPECT_TRUE(run.missing.empty());
}

TEST(Ranks, WithoutAnEnvironmentTheLargestCommunicatorSays) {
  HandMadeJob job(4, {2, 0, 3, 1});
  job.comm("pair", {0, 1});
  job.comm("world", {0, 1, 2, 3});
  for (int rank = 0; rank < 4; rank++) job.file(rank).header.env_rank = job.file(rank).header.env_world_size = -1;
  job.lose_trace(2);
  const lockstep::Run run = assemble_runs(job.processes()).back();
  ASSERT_EQ(run.ranks.size(), 3u);
  EXPECT_EQ(run.ranks[0].number, 0);
  EXPECT_EQ(run.ranks[2].number, 2);
  EXPECT_EQ(run.missing, std::vector<int>{3});
}

TEST(Ranks, ARestartIsARunOfItsOwn) {
  HandMadeJob first(2, {0, 1}), second(2, {0, 1});
  first.comm("world", {0, 1});
  second.wait(500);
  second.comm("again", {0, 1});
  std::vector<Process> processes = second.processes();
  for (Process& process : processes) process.file.header.opened_wall_ns += 500'000'000'000;
  for (Process& process : first.processes()) processes.push_back(std::move(process));
  const std::vector<lockstep::Run> runs = assemble_runs(std::move(processes));
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs.back().ranks.size(), 2u);
  EXPECT_EQ(runs.back().processes.front().file.comms.front().name, "again");
}

TEST(Ranks, AHelperProcessThatInheritedTheRankIsNoRival) {
  HandMadeJob job(2, {0, 1}), helper(1, {0});
  job.comm("world", {0, 1});
  std::vector<Process> processes = job.processes();
  for (Process& process : helper.processes()) processes.push_back(std::move(process));
  const std::vector<lockstep::Run> runs = assemble_runs(std::move(processes));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].ranks.size(), 2u);
  EXPECT_TRUE(runs[0].notes.empty());
  EXPECT_FALSE(runs[0].process_of(0).file.comms.empty());
}

TEST(Ranks, NumberRanges) {
  EXPECT_EQ(number_ranges({5, 0, 1, 2, 3, 7, 8}), "0-3,5,7,8");
  EXPECT_EQ(number_ranges({}), "");
}

}  // namespace
}  // namespace lockstep::test
