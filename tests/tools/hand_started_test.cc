// SPDX-License-Identifier: MIT
//
// Ranks that were started one by one, each with a run id that it made up: one run where nothing contradicts it.

#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>

#include "tools/job/job.h"
#include "tools/job/runs.h"

namespace lockstep::test {
namespace {

constexpr int64_t kSecond = 1'000'000'000, kStart = 1'800'000'000 * kSecond;

struct Shell {
  int rank = 0;
  uint64_t comm = 7;               // 0 = has made none
  int64_t opened = 0, seen = 100;  // seconds
  bool lives = true;
  int world = 4;
  const char* run_id = nullptr;
  const char* host = "a";
};

Process process_of(const Shell& shell) {
  Process process;
  trace::TraceFile& file = process.file;
  memset(&file.header, 0, sizeof file.header);
  file.header.pid = 100 + shell.rank + static_cast<int>(shell.opened) * 10;
  file.header.env_rank = shell.rank;
  file.header.env_world_size = shell.world;
  file.header.opened_wall_ns = kStart + shell.opened * kSecond;
  file.header.opened_mono_ns = shell.opened * kSecond;
  strcpy(file.header.host, shell.host);
  const std::string made_up = "20261130-101500-" + std::to_string(file.header.pid);
  strcpy(file.header.run_id, shell.run_id ? shell.run_id : made_up.c_str());
  file.last_beat = {shell.seen * kSecond, kStart + shell.seen * kSecond};
  process.liveness = shell.lives ? trace::Liveness::alive : trace::Liveness::dead;
  if (shell.comm) {
    trace::CommInfo comm;
    comm.serial = 1;
    comm.id = shell.comm;
    comm.rank = shell.rank;
    comm.nranks = shell.world;
    comm.created = comm.ready = {(shell.opened + 1) * kSecond, kStart + (shell.opened + 1) * kSecond};
    file.comms.push_back(comm);
  }
  return process;
}

std::vector<lockstep::Run> runs_of(const std::vector<Shell>& shells) {
  std::vector<Process> processes;
  for (const Shell& shell : shells) processes.push_back(process_of(shell));
  return assemble_runs(std::move(processes));
}

TEST(StartedByHand, OneCommunicatorMakesThemOneRun) {
  const auto runs = runs_of({{0}, {2, 7, 3}, {1, 7, 5}, {3, 7, 40}});
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].ranks.size(), 4u);
  EXPECT_TRUE(runs[0].missing.empty());
  ASSERT_EQ(runs[0].notes.size(), 1u);
  EXPECT_NE(runs[0].notes[0].find("LOCKSTEP_RUN_ID"), std::string::npos);
}

TEST(StartedByHand, BeforeThereIsACommunicatorTheTimeDoes) {
  EXPECT_EQ(runs_of({{0}, {1, 0, 20}, {2, 0, 30}}).size(), 1u);
  EXPECT_EQ(runs_of({{0, 0}, {1, 0, 2000, 2100}}).size(), 2u) << "half an hour later";
}

TEST(StartedByHand, WhatContradictsIt) {
  EXPECT_EQ(runs_of({{0}, {0, 7, 5}}).size(), 2u) << "one rank twice";
  EXPECT_EQ(runs_of({{0}, {1, 8}}).size(), 2u) << "each has a world of its own";
  EXPECT_EQ(runs_of({{0, 7, 0, 10, false}, {1, 7, 20}}).size(), 2u) << "the one was gone before the other came";
  EXPECT_EQ(runs_of({{0}, {1, 7, 0, 100, true, 2}}).size(), 2u) << "worlds of different sizes";
  EXPECT_EQ(runs_of({{0, 7, 0, 100, true, 4, "mine"}, {1, 7, 0, 100, true, 4, "yours"}}).size(), 2u) << "named";
  EXPECT_EQ(runs_of({{0, 7, 0, 100, true, 1}, {1, 7, 0, 100, true, 1}}).size(), 2u) << "no world at all";
}

// A fixed rendezvous gives the same id again, and the folder still holds the run before.
TEST(StartedByHand, ASecondStartInTheSameFolderIsARunOfItsOwn) {
  const auto runs = runs_of({{0, 7, 0, 50, false},
                             {1, 7, 1, 50, false},
                             {2, 7, 2, 50, false},
                             {3, 7, 3, 50, false},
                             {1, 7, 60},
                             {0, 7, 61},
                             {3, 7, 62},
                             {2, 7, 63}});
  ASSERT_EQ(runs.size(), 2u);
  for (const lockstep::Run& run : runs) EXPECT_EQ(run.ranks.size(), 4u);
  EXPECT_EQ(runs[1].opened_wall_ns, kStart + 60 * kSecond);
}

TEST(StartedByHand, ClocksOfHostsMayDifferALittle) {
  EXPECT_EQ(runs_of({{0, 7, 0, 10, false}, {1, 7, 11, 20, false, 4, nullptr, "b"}}).size(), 1u);
  EXPECT_EQ(runs_of({{0, 7, 0, 10, false}, {1, 7, 11, 20, false}}).size(), 2u);
}

TEST(StartedByHand, WhichRunIdsAreMadeUp) {
  EXPECT_TRUE(is_made_up("20261130-101500-4711"));
  EXPECT_TRUE(is_made_up("20261130-101500.4711"));
  for (const char* given : {"", "4711", "20261130-101500", "20261130-101500-", "20261130-101500-47x", "job-101500-4711",
                            "20261130_101500-4711", "slurm-17.0"})
    EXPECT_FALSE(is_made_up(given)) << given;
}

}  // namespace
}  // namespace lockstep::test
