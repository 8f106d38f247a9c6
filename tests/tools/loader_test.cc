// SPDX-License-Identifier: MIT
//
// Folders as users have them: missing, empty, half unreadable; one process with many ranks, one folder with many runs.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/bench/made_traces.h"
#include "tests/interpose/trace_fixture.h"
#include "tests/tools/hand_made.h"
#include "tools/diagnose.h"
#include "tools/job/clocks.h"
#include "tools/report/report.h"

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

TEST_F(Loader, WhatIsNoFileIsLeftOutAndNotWaitedFor) {
  const std::string good = make_trace();
  ASSERT_EQ(mkfifo(path("pipe.lstrace").c_str(), 0600), 0);
  fs::create_directories(path("folder.lstrace"));
  fs::create_symlink(path("nowhere"), path("dangling.lstrace"));
  fs::create_symlink("/dev/zero", path("zero.lstrace"));
  Result<Job> job = load_job(folder_.path());
  ASSERT_TRUE(job) << job.error();
  EXPECT_EQ(job->runs.back().processes.size(), 1u);
  for (const char* name : {"pipe", "folder", "dangling", "zero"})
    EXPECT_TRUE(std::any_of(job->left_out.begin(), job->left_out.end(), [&](const std::string& sentence) {
      return sentence.find(path(name) + ".lstrace: ") == 0 && sentence.find('\n') == std::string::npos;
    })) << name;
}

// --- traces of many ranks, as the writer leaves them

struct Diagnosed40 {
  std::unique_ptr<Diagnosed> found;
  size_t calls = 0, digests = 0;  // kept, of all ranks
};
Diagnosed40 diagnose40(const std::string& folder) {
  Diagnosed40 out;
  Result<std::unique_ptr<Diagnosed>> found = diagnose_folder(folder, {});
  EXPECT_TRUE(found) << found.error();
  if (!found) return out;
  out.found = std::move(*found);
  for (const Process& process : out.found->job.runs.back().processes) {
    out.calls += process.file.calls.size();
    out.digests += process.file.digests.size();
  }
  return out;
}

constexpr int kRanks = 40;
constexpr uint64_t kCalls = 1000;

TEST_F(Loader, OfManyFilesOnlyWhatIsOpenIsKept) {
  for (const bool extras : {false, true}) {
    const bench::MadeTraces made(folder_.path(), kRanks, kCalls, extras);
    made.write(folder_.path());
    const Diagnosed40 all = diagnose40(folder_.path());
    ASSERT_TRUE(all.found);
    const lockstep::Run& run = all.found->evidence->run;
    EXPECT_EQ(run.ranks.size(), static_cast<size_t>(kRanks));
    EXPECT_LT(all.calls, kRanks * kCalls / 4);
    EXPECT_LT(all.digests, kRanks * kCalls / 4);
    ASSERT_FALSE(all.found->diagnosis.findings.empty());
    const Finding& finding = all.found->diagnosis.findings.front();
    EXPECT_EQ(finding.kind, Kind::missing_call) << finding.summary;
    EXPECT_EQ(finding.culprits, std::vector<size_t>{static_cast<size_t>(made.culprit())});
    EXPECT_EQ(finding.seq, made.missing_seq());
    EXPECT_EQ(finding.victims.size(), static_cast<size_t>(kRanks - 1));
    const bool overlaps = std::any_of(all.found->diagnosis.findings.begin(), all.found->diagnosis.findings.end(),
                                      [](const Finding& each) { return each.kind == Kind::concurrent_use; });
    EXPECT_EQ(overlaps, extras);
    for (const std::string& file : folder_.traces()) fs::remove(file);
  }
}

TEST_F(Loader, OfManyFilesACallThatDiffersIsFoundHoweverOld) {
  const uint64_t odd = 130;
  const bench::MadeTraces made(folder_.path(), kRanks, kCalls, true, odd);
  made.write(folder_.path());
  const Diagnosed40 all = diagnose40(folder_.path());
  ASSERT_TRUE(all.found);
  EXPECT_LT(all.calls, kRanks * kCalls / 2);
  const Finding& finding = all.found->diagnosis.findings.front();
  EXPECT_EQ(finding.kind, Kind::count_mismatch) << finding.summary;
  EXPECT_EQ(finding.culprits, std::vector<size_t>{static_cast<size_t>(made.culprit())});
  EXPECT_EQ(finding.seq, odd);
  EXPECT_EQ(finding.agreed_seq, odd - 1);
  EXPECT_EQ(finding.stuck_seq, made.missing_seq());
}

TEST_F(Loader, OfManyFilesBadOnesAreNamedWithTheirPlace) {
  const bench::MadeTraces made(folder_.path(), kRanks, kCalls);
  made.write(folder_.path());
  std::vector<std::string> files = folder_.traces();
  std::sort(files.begin(), files.end());
  fs::resize_file(files[3], 100);
  std::ofstream(files[5], std::ios::binary) << "";
  std::fstream(files[8], std::ios::in | std::ios::out | std::ios::binary).seekp(0) << "XXXX";
  const Diagnosed40 all = diagnose40(folder_.path());
  ASSERT_TRUE(all.found);
  const Job& job = all.found->job;
  ASSERT_EQ(job.left_out.size(), 3u);
  const std::pair<size_t, const char*> said[] = {
      {3, "100 bytes, expected at least"}, {5, "is empty; expected"}, {8, "does not begin with"}};
  for (const auto& [file, words] : said)
    EXPECT_TRUE(std::any_of(job.left_out.begin(), job.left_out.end(),
                            [&, file = file, words = words](const std::string& sentence) {
                              return sentence.find(files[file] + ": ") == 0 &&
                                     sentence.find(words) != std::string::npos;
                            }))
        << words;
  EXPECT_EQ(all.found->evidence->run.missing.size(), 3u);
  EXPECT_EQ(all.found->diagnosis.findings.front().kind, Kind::missing_call);
  const std::string json = report_json(job, *all.found->evidence, all.found->diagnosis);
  EXPECT_NE(json.find(files[5]), std::string::npos);
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

// Two restarts of one job, of which the newer one's hosts have clocks that are behind.
TEST(Ranks, TheLaterRestartIsNewerWhateverTheClocksSay) {
  HandMadeJob first(2, {0, 1}), second(2, {0, 1});
  first.comm("before", {0, 1});
  second.comm("after", {0, 1});
  std::vector<Process> processes = second.processes();
  for (Process& process : processes) {
    process.file.header.restart_count = 1;
    shift_wall_times(process.file, -7'200'000'000'000);
  }
  for (Process& process : first.processes()) processes.push_back(std::move(process));
  const std::vector<lockstep::Run> runs = assemble_runs(std::move(processes));
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs.back().restart, 1u);
  EXPECT_EQ(runs.back().processes.front().file.comms.front().name, "after");
}

// --- clocks that disagree

constexpr int64_t kHours = 3'600'000'000'000;

// Copied traces, of which those of host b have another clock.
Diagnosis judge_skewed(const HandMadeJob& job, int64_t by, std::vector<std::string>& notes) {
  std::vector<Process> processes = job.processes();
  for (Process& process : processes) {
    process.liveness = trace::Liveness::elsewhere;
    if (process.file.header.host[0] == 'b') shift_wall_times(process.file, by);
  }
  const lockstep::Run run = assemble_runs(std::move(processes)).back();
  notes = run.notes;
  return judge(run, match(run), {}, 0);
}

TEST(Clocks, HoursApartNobodyIsTakenForDead) {
  for (const int64_t by : {-2 * kHours, kHours / 60, int64_t{0}}) {
    HandMadeJob job(4, {0, 1, 2, 3});  // 1 and 3 are on host b
    job.comm("world", {0, 1, 2, 3});
    job.call_all("world", {}, 5);
    job.wait(1);
    std::vector<std::string> notes;
    const Diagnosis diagnosis = judge_skewed(job, by, notes);
    EXPECT_EQ(diagnosis.verdict, Verdict::healthy) << by;
    EXPECT_EQ(notes.size(), by ? 1u : 0u);
  }
}

TEST(Clocks, TheFirstToDieIsToldInOneTime) {
  for (const int64_t by : {-2 * kHours, 2 * kHours, int64_t{0}}) {
    HandMadeJob job(4, {0, 1, 2, 3});
    job.comm("world", {0, 1, 2, 3});
    job.call_all("world", {}, 5);
    job.dies(0, SIGSEGV);
    job.wait(4);
    for (const int rank : {1, 2, 3}) job.dies(rank, SIGTERM);
    std::vector<std::string> notes;
    const Diagnosis diagnosis = judge_skewed(job, by, notes);
    ASSERT_FALSE(diagnosis.findings.empty());
    EXPECT_EQ(diagnosis.findings.front().kind, Kind::died);
    EXPECT_EQ(diagnosis.findings.front().culprits, std::vector<size_t>{0}) << by;
  }
}

TEST(Clocks, ALateRankIsNoSkew) {
  HandMadeJob job(2, {0, 1});
  job.comm("world", {0, 1});
  for (int i = 0; i < 3; i++) {
    job.call(0, "world");
    job.wait(40);
    job.call(1, "world");
  }
  std::vector<std::string> notes;
  EXPECT_EQ(judge_skewed(job, 0, notes).verdict, Verdict::healthy);
  EXPECT_TRUE(notes.empty()) << notes.front();
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
