// SPDX-License-Identifier: MIT
//
// The demo under `lockstep run`, as `./dev demo` runs it, with random numbers of ranks, short ranks and lengths:
// whatever they are, the verdict must name the rank, the call and the step that the options imply. The same training
// with
// --drop-last must be healthy.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tests/demo/process.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using Words = std::vector<std::string>;

// The demo's calls on its one communicator: five broadcasts, then six all-reduces a step.
constexpr int kBroadcasts = 5;
constexpr int kCallsPerStep = 6;

struct Case {
  int ranks, short_rank, steps, batch;
  Words options() const {
    return {"--ranks", std::to_string(ranks), "--short-rank", std::to_string(short_rank),
            "--steps", std::to_string(steps), "--batch",      std::to_string(batch)};
  }
  std::string name() const {
    std::ostringstream text;
    for (const std::string& word : options()) text << word << ' ';
    return text.str();
  }
};

Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  Case c{};
  c.ranks = between(2, 6);
  c.short_rank = between(0, c.ranks - 1);
  c.steps = between(2, 30);
  c.batch = between(1, 40);
  return c;
}

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Outcome run_demo(const std::string& traces, const Words& options) {
  return run_program(Words{LOCKSTEP_CLI, "run", "--host", "--dir", traces, "--hang-seconds", "1.5", "--kill-on-hang",
                           "--", LOCKSTEP_DEMO} +
                         options,
                     seconds(60));
}

json diagnose(const std::string& traces, int expected_status) {
  const Outcome outcome = run_program({LOCKSTEP_CLI, "diagnose", "--json", traces}, seconds(30));
  EXPECT_EQ(outcome.status, expected_status) << outcome.err;
  return json::parse(outcome.out, nullptr, false);
}

// The root cause, which comes first; an empty object when the verdict has none.
json root_cause(const json& verdict) {
  const json findings = verdict.value("findings", json::array());
  return findings.empty() ? json::object() : findings.front();
}

Words all_frames(const json& finding, int rank) {
  Words frames;
  const std::string key = std::to_string(rank);
  if (!finding.contains("stacks") || !finding["stacks"].contains(key)) return frames;
  for (const json& thread : finding["stacks"][key])
    for (const json& frame : thread["frames"]) frames.push_back(frame);
  return frames;
}

bool mentions(const Words& frames, const std::string& what) {
  for (const std::string& frame : frames)
    if (frame.find(what) != std::string::npos) return true;
  return false;
}

class Demo : public testing::TestWithParam<unsigned> {
 protected:
  // Nothing of the job may outlive it. Ends take a moment to be seen in /proc.
  void expect_no_process_left() {
    for (int tries = 0; tries < 100 && !processes_with(traces).empty(); ++tries) usleep(20'000);
    EXPECT_TRUE(processes_with(traces).empty());
  }
  TemporaryFolder folder;
  std::string traces = folder.path("traces");
};

TEST_P(Demo, TheShortRankIsNamed) {
  const Case c = random_case(GetParam());
  SCOPED_TRACE(c.name());
  const Outcome outcome = run_demo(traces, c.options());
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  EXPECT_NE((outcome.out + outcome.err).find("rank " + std::to_string(c.short_rank)), std::string::npos);
  expect_no_process_left();

  const json verdict = diagnose(traces, 1);
  EXPECT_EQ(verdict.value("status", ""), "hung");
  const json cause = root_cause(verdict);
  EXPECT_EQ(cause.value("kind", ""), "missing-call") << verdict.dump(1);
  EXPECT_EQ(cause.value("culprits", json()), json::array({c.short_rank}));
  EXPECT_EQ(cause.value("op", ""), "AllReduce");
  EXPECT_EQ(cause.value("seq", -1), kBroadcasts + kCallsPerStep * (c.steps - 1));
  EXPECT_EQ(cause.value("step", -1), c.steps - 1);
  EXPECT_EQ(cause.value("sample", ""),
            "shard" + std::to_string(c.short_rank) + ":" + std::to_string((c.steps - 2) * c.batch));
  EXPECT_TRUE(mentions(all_frames(cause, c.short_rank), "wait_for_epoch_end")) << verdict.dump(1);
  EXPECT_TRUE(mentions(all_frames(cause, c.short_rank), "data_loader.cc:")) << verdict.dump(1);
}

TEST_P(Demo, DropLastIsHealthy) {
  const Case c = random_case(GetParam() + 1000);
  SCOPED_TRACE(c.name());
  const Outcome outcome = run_demo(traces, c.options() + Words{"--drop-last"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("epoch over after " + std::to_string(c.steps - 1) + " steps"), std::string::npos)
      << outcome.out;
  const json verdict = diagnose(traces, 0);
  EXPECT_EQ(verdict.value("status", ""), "healthy") << verdict.dump(1);
  EXPECT_EQ(verdict.value("findings", json()), json::array());
  expect_no_process_left();
}

TEST_P(Demo, ExitEarlyIsLeftEarly) {
  const Case c = random_case(GetParam() + 2000);
  SCOPED_TRACE(c.name());
  const Outcome outcome = run_demo(traces, c.options() + Words{"--exit-early"});
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  const json cause = root_cause(diagnose(traces, 1));
  EXPECT_EQ(cause.value("kind", ""), "left-early") << cause.dump(1);
  EXPECT_EQ(cause.value("culprits", json()), json::array({c.short_rank}));
  EXPECT_EQ(cause.value("seq", -1), kBroadcasts + kCallsPerStep * (c.steps - 1));
  expect_no_process_left();
}

INSTANTIATE_TEST_SUITE_P(Seeds, Demo, testing::Range(1U, 5U));

// Without the shim: the losses that rank 0 prints, first and last.
TEST(DemoAlone, LossFalls) {
  const Outcome outcome = run_program({LOCKSTEP_DEMO, "--drop-last"}, seconds(60));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  Words words;
  std::istringstream text(outcome.out);
  for (std::string word; text >> word;) words.push_back(word);
  std::vector<double> losses;
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == "loss") losses.push_back(std::stod(words[i + 1]));
  ASSERT_GE(losses.size(), 3U) << outcome.out;
  EXPECT_LT(losses.back(), losses.front() - 1) << outcome.out;
}

TEST(DemoAlone, SameLossEveryTime) {
  const Words command{LOCKSTEP_DEMO, "--drop-last", "--ranks", "3", "--steps", "20"};
  const Outcome first = run_program(command, seconds(60));
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(first.out, run_program(command, seconds(60)).out);
}

TEST(DemoAlone, WrongOptionsCostOneSentence) {
  const std::vector<std::pair<Words, std::string>> wrong = {
      {{"--text", "/nonexistent/text"}, "/nonexistent/text"},
      {{"--text", "/"}, "/"},
      {{"--text", "/dev/null"}, "/dev/null"},
      {{"--ranks", "1"}, "from 2 to 64"},
      {{"--ranks", "four"}, "\"four\""},
      {{"--ranks"}, "--ranks"},
      {{"--short-rank", "4"}, "4 ranks"},
      {{"--steps", "900000"}, "not for --steps 900000"},
      {{"--batch", "60000"}, "too few"},
      {{"--wings"}, "--wings"},
      {{"wings"}, "wings"},
  };
  for (const auto& [options, expected] : wrong) {
    const Outcome outcome = run_program(Words{LOCKSTEP_DEMO} + options, seconds(20));
    EXPECT_EQ(outcome.status, 2) << options[0];
    EXPECT_NE(outcome.err.find(expected), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace lockstep::test
