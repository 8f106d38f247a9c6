// SPDX-License-Identifier: MIT
//
// `lockstep run` above a launcher, and below it: one supervisor for all ranks, or one each that share a folder.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/demo/process.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;

class Launcher : public testing::Test {
 protected:
  Launcher() {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
  }
  Outcome above(const std::string& fault) { return run_program(supervised({LOCKSTEP_MPIRUN, "-n", "3"}, fault), 40s); }
  Outcome below(const std::string& fault) {
    Words words{LOCKSTEP_MPIRUN, "-n", "3"};
    for (const std::string& word : supervised({}, fault)) words.push_back(word);
    return run_program(words, 40s);
  }
  Words supervised(const Words& launcher, const std::string& fault) {
    Words words{LOCKSTEP_CLI, "run", "--host", "--dir", traces_, "--hang-seconds", "1", "--kill-on-hang", "--"};
    words.insert(words.end(), launcher.begin(), launcher.end());
    words.insert(words.end(), {CLIENT, folder_.path("id"), fault, "1"});
    return words;
  }
  // A shell for each rank: no launcher, and nobody gives them a common name.
  Outcome by_hand(const std::string& fault) {
    Words words{"env", "-u", "LOCKSTEP_RUN_ID",
                "sh",  "-c", "for rank in 0 1 2; do RANK=$rank WORLD_SIZE=3 \"$@\" & done; wait"};
    words.push_back("sh");
    for (const std::string& word : supervised({}, fault)) words.push_back(word);
    return run_program(words, 60s);
  }
  nlohmann::json diagnose() {
    return nlohmann::json::parse(run_program({LOCKSTEP_CLI, "diagnose", "--json", traces_}, 20s).out, nullptr, false);
  }
  void expect_nobody_left() {
    for (int tries = 0; tries < 200 && !processes_with(traces_).empty(); tries++) std::this_thread::sleep_for(20ms);
    EXPECT_TRUE(processes_with(traces_).empty());
  }
  TemporaryFolder folder_;
  std::string traces_ = folder_.path("traces");
};

void expect_verdict(const nlohmann::json& verdict, const char* status, const char* kind) {
  SCOPED_TRACE(verdict.dump(1).substr(0, 3000));
  EXPECT_EQ(verdict["status"], status);
  ASSERT_FALSE(verdict["findings"].empty());
  EXPECT_EQ(verdict["findings"][0]["kind"], kind);
  EXPECT_EQ(verdict["findings"][0]["culprits"], nlohmann::json::array({1}));
}

int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) count++;
  return count;
}

TEST_F(Launcher, AboveHealthy) {
  const Outcome outcome = above("none");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(diagnose()["status"], "healthy");
  expect_nobody_left();
}

TEST_F(Launcher, AboveAHang) {
  const Outcome outcome = above("stay");
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_EQ(times(outcome.err, "lockstep: hung: rank 1 "), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("stays_away"), std::string::npos) << outcome.err;
  expect_verdict(diagnose(), "hung", "missing-call");
  expect_nobody_left();
}

TEST_F(Launcher, AboveADeathAfterWhichTheLauncherStopsTheRest) {
  const Outcome outcome = above("kill");
  EXPECT_NE(outcome.status, 0);
  expect_verdict(diagnose(), "failed", "died");
  expect_nobody_left();
}

TEST_F(Launcher, BelowHealthy) {
  const Outcome outcome = below("none");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(diagnose()["status"], "healthy");
  expect_nobody_left();
}

TEST_F(Launcher, BelowAHang) {
  const Outcome outcome = below("stay");
  EXPECT_NE(outcome.status, 0);
  EXPECT_EQ(times(outcome.err, "lockstep: hung: rank 1 "), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("stays_away"), std::string::npos) << outcome.err;
  expect_verdict(diagnose(), "hung", "missing-call");
  expect_nobody_left();
}

TEST_F(Launcher, ByHandHealthy) {
  const Outcome outcome = by_hand("none");
  const nlohmann::json verdict = diagnose();
  EXPECT_EQ(verdict["status"], "healthy") << outcome.err << verdict.dump(1);
  EXPECT_EQ(verdict["job"]["traces"], 3);
  expect_nobody_left();
}

// Whoever gives the verdict ends its own rank only; the other supervisors follow.
TEST_F(Launcher, ByHandAHang) {
  const Outcome outcome = by_hand("stay");
  EXPECT_EQ(times(outcome.err, "lockstep: hung: rank 1 "), 1) << outcome.err;
  EXPECT_EQ(times(outcome.err, "ending the job"), 3) << outcome.err;
  expect_verdict(diagnose(), "hung", "missing-call");
  expect_nobody_left();
}

// It must not be let go on by our ending the job: what is judged later is the same.
TEST_F(Launcher, ByHandAStoppedRank) {
  const Outcome outcome = by_hand("stop");
  EXPECT_EQ(times(outcome.err, "lockstep: hung: rank 1 "), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("it is stopped by a signal or by job control"), std::string::npos) << outcome.err;
  const nlohmann::json verdict = diagnose();
  expect_verdict(verdict, "hung", "missing-call");
  EXPECT_NE(verdict.dump().find("it is stopped by a signal"), std::string::npos) << verdict.dump(1);
  expect_nobody_left();
}

TEST_F(Launcher, BelowADeath) {
  EXPECT_NE(below("kill").status, 0);
  expect_verdict(diagnose(), "failed", "died");
  expect_nobody_left();
}

}  // namespace
}  // namespace lockstep::test
