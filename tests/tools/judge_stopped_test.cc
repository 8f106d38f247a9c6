// SPDX-License-Identifier: MIT
//
// Ranks whose process somebody has stopped: a signal, job control, a debugger. Their own clocks stand still with them.

#include "tests/tools/scenes_by_hand.h"

namespace lockstep::test {
namespace {

constexpr const char* kBySignal = "it is stopped by a signal or by job control";
constexpr const char* kByDebugger = "it is stopped by a debugger";

void all_wait_for(HandMadeJob& job, int rank, char state) {
  job.call_all("world");
  all_but(job, {rank});
  job.file(rank).snapshots.back().state = state;
}

Judged judged(int rank, char state, double later = 0) {
  HandMadeJob job = job_of(3);
  all_wait_for(job, rank, state);
  job.wait(later);
  return judge_job(job);
}

TEST(Stopped, TheRankThatIsMissingIsSaidToBeStopped) {
  check(3, [](HandMadeJob& job) { all_wait_for(job, 1, 'T'); },
        {Verdict::hung, Kind::missing_call, {1}, "world", 1, std::vector<int>{0, 2}});
  EXPECT_NE(judged(1, 'T').first().summary.find(kBySignal), std::string::npos);
  EXPECT_NE(judged(1, 'T').first().next.find("kill -CONT"), std::string::npos);
  EXPECT_NE(judged(1, 't').first().summary.find(kByDebugger), std::string::npos);
}

TEST(Stopped, NotOneThatSleepsOrHasGoneOnSince) {
  for (const Judged& each : {judged(1, 'S'), judged(1, 'T', 30)}) {
    EXPECT_EQ(each.first().kind, Kind::missing_call);
    EXPECT_EQ(each.first().summary.find("stopped"), std::string::npos) << each.first().summary;
  }
}

// It made the call and was stopped behind it: nobody is missing, and still nothing gets on.
TEST(Stopped, BehindACallThatAllHaveMade) {
  const auto scene = [](HandMadeJob& job) {
    job.call_all("world", {}, 2);
    job.wait(kThreshold + 5);
    for (const int rank : {0, 1, 2}) job.sits_in(rank, "cudaStreamSynchronize");
    job.file(2).snapshots.back().state = 'T';
  };
  check(3, scene, {Verdict::hung, Kind::host_blocked, {2}, "world", 1, std::vector<int>{0, 1}});
  HandMadeJob job = job_of(3);
  scene(job);
  EXPECT_NE(judge_job(job).first().summary.find(kBySignal), std::string::npos);
}

// Stopped before anybody took a snapshot, without a supervisor: the kernel says so of a process that is alive here. Its
// last heartbeat is as old as its last call.
TEST(Stopped, AsTheKernelSaysNow) {
  HandMadeJob job = job_of(3);
  job.call_all("world");
  std::vector<Process> before = job.processes();
  job.call(0, "world"), job.call(2, "world");
  job.wait(kThreshold + 5);
  std::vector<Process> processes = job.processes();
  processes[1].file.last_beat = before[1].file.last_beat;
  processes[1].state = 'T';
  const lockstep::Run run = assemble_runs(std::move(processes)).back();
  const Table table = match(run);
  const Diagnosis diagnosis = judge(run, table, {}, 0);
  ASSERT_FALSE(diagnosis.findings.empty());
  EXPECT_EQ(diagnosis.findings.front().kind, Kind::missing_call);
  EXPECT_EQ(diagnosis.findings.front().culprits, std::vector<size_t>{1});
}

// In a copied folder a heartbeat that ends long before the others' counts as a death; one that was stopped is none.
TEST(Stopped, IsNoDeathInACopy) {
  HandMadeJob job = job_of(3);
  all_wait_for(job, 1, 'T');
  std::vector<Process> then = job.processes();
  job.wait(100);
  std::vector<Process> processes = job.processes();
  processes[1] = then[1];
  for (Process& process : processes) process.liveness = trace::Liveness::elsewhere;
  const lockstep::Run run = assemble_runs(std::move(processes)).back();
  const Table table = match(run);
  const Diagnosis diagnosis = judge(run, table, {}, 0);
  ASSERT_FALSE(diagnosis.findings.empty());
  EXPECT_EQ(diagnosis.findings.front().kind, Kind::missing_call);
}

}  // namespace
}  // namespace lockstep::test
