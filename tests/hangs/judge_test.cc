// SPDX-License-Identifier: MIT
//
// The judge of verdicts must be able to fail: every field that a scenario expects is given wrong once.

#include "tools/scenario/judge.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using nlohmann::json;

scenario::Scenario scene(const std::string& expect) {
  std::string text =
      "title: t\nranks: 3\ncomm late: 0 1 later\neach: step; allreduce world 8; sync\nexpect: " + expect + "\n";
  Result<scenario::Scenario> s = scenario::parse_scenario("f.hang", text);
  EXPECT_TRUE(s) << (s ? "" : s.error());
  return *s;
}

constexpr const char* kExpect =
    "status hung; kind missing-call; culprits 1; victims 0,2; comm world; seq 3; op AllReduce; step 2; missing none; "
    "in evaluate";

json verdict(int culprit, std::vector<int> victims, int seq, int step) {
  return {{"status", "hung"},
          {"job", {{"missing_ranks", json::array()}}},
          {"findings",
           {{{"kind", "missing-call"},
             {"severity", "error"},
             {"culprits", {culprit}},
             {"victims", victims},
             {"comm", {{"name", "world"}}},
             {"seq", seq},
             {"op", "AllReduce"},
             {"step", step},
             {"stacks", {{std::to_string(culprit), {{{"thread", "main"}, {"frames", {"nanosleep", "evaluate"}}}}}}}}}}};
}

ScenarioOutcome judge(const std::string& expect, ScenarioVariant variant, const json& diagnosis, int status = 1) {
  return judge_scenario(scene(expect), variant, diagnosis.dump(), status);
}

std::string joined(const ScenarioOutcome& outcome) {
  std::string text;
  for (const std::string& d : outcome.differences) text += d + "\n";
  return text;
}

TEST(ScenarioJudge, RightAsWritten) {
  ScenarioOutcome o = judge(kExpect, {}, verdict(1, {0, 2}, 3, 2));
  EXPECT_EQ(joined(o), "");
  EXPECT_EQ(o.score.right, 1);
  EXPECT_EQ(o.score.calls_right, 1);
  EXPECT_NE(o.verdict.find("missing-call, culprits 1, AllReduce #3 on world"), std::string::npos) << o.verdict;
}

TEST(ScenarioJudge, FollowsPermutationAndShift) {
  for (uint64_t seed = 1; seed < 20; seed++) {
    std::vector<int> world = scenario::permutation(seed, 3);
    std::vector<int> victims{world[0], world[2]};
    EXPECT_EQ(joined(judge(kExpect, {seed, 4}, verdict(world[1], victims, 7, 6))), "") << seed;
    bool unmoved = world[1] == 1;
    EXPECT_EQ(joined(judge(kExpect, {seed, 4}, verdict(1, {0, 2}, 7, 6))).empty(), unmoved) << seed;
    EXPECT_NE(joined(judge(kExpect, {seed, 4}, verdict(world[1], victims, 3, 6))), "") << seed;
    EXPECT_NE(joined(judge(kExpect, {seed, 4}, verdict(world[1], victims, 7, 2))), "") << seed;
  }
}

TEST(ScenarioJudge, LaterCommunicatorsAreNotShifted) {
  json v = verdict(1, {0, 2}, 3, 2);
  v["findings"][0]["comm"]["name"] = "late";
  EXPECT_EQ(joined(judge("status hung; comm late; seq 3", {0, 5}, v)),
            "accusations: expected none of rank 1, got missing-call\n");
}

struct Change {
  const char* path;
  json value;
  const char* says;
};

TEST(ScenarioJudge, EveryFieldCanFail) {
  const Change changes[] = {
      {"/status", "healthy", "status: expected hung, got healthy"},
      {"/findings/0/kind", "died", "kind: expected missing-call, got died"},
      {"/findings/0/culprits", {2}, "culprits: expected 1, got 2"},
      {"/findings/0/culprits", json::array(), "culprits: expected 1, got none"},
      {"/findings/0/culprits", {1, 2}, "culprits: expected 1, got 1,2"},
      {"/findings/0/victims", {0}, "victims: expected 0,2, got 0"},
      {"/findings/0/comm/name", "tp", "communicator: expected world, got tp"},
      {"/findings/0/seq", 2, "seq: expected 3, got 2"},
      {"/findings/0/seq", nullptr, "seq: expected 3, got null"},
      {"/findings/0/op", "Reduce", "operation: expected AllReduce, got \"Reduce\""},
      {"/findings/0/step", 1, "step: expected 2, got 1"},
      {"/job/missing_ranks", {2}, "missing ranks: expected none, got 2"},
      {"/findings/0/stacks", json::object(), "stack of rank 1: expected the function evaluate, got none"},
  };
  for (const Change& change : changes) {
    json v = verdict(1, {0, 2}, 3, 2);
    v[json::json_pointer(change.path)] = change.value;
    ScenarioOutcome o = judge(kExpect, {}, v);
    EXPECT_NE(joined(o).find(change.says), std::string::npos) << change.path << ": " << joined(o);
    EXPECT_EQ(o.score.right, 0);
  }
}

TEST(ScenarioJudge, ExitStatusMustFitTheVerdict) {
  EXPECT_NE(joined(judge(kExpect, {}, verdict(1, {0, 2}, 3, 2), 0)).find("exit status of diagnose"), std::string::npos);
}

TEST(ScenarioJudge, BlameInALaterFindingIsAFalseAccusation) {
  json v = verdict(1, {0, 2}, 3, 2);
  v["findings"].push_back({{"kind", "died"}, {"severity", "error"}, {"culprits", {0}}});
  ScenarioOutcome o = judge(kExpect, {}, v);
  EXPECT_EQ(o.score.false_accusations, 1);
  EXPECT_EQ(judge(std::string(kExpect) + "; also died 0", {}, v).score.false_accusations, 0);
  EXPECT_EQ(joined(judge(std::string(kExpect) + "; also died 0", {}, v)), "");
  EXPECT_NE(joined(judge(std::string(kExpect) + "; also died 2", {}, v)), "");
  v["findings"][1]["severity"] = "note";
  EXPECT_EQ(judge(kExpect, {}, v).score.false_accusations, 0);
}

TEST(ScenarioJudge, HealthyMeansThatNobodyIsBlamed) {
  json healthy = {{"status", "healthy"}, {"job", json::object()}, {"findings", json::array()}};
  EXPECT_EQ(joined(judge("status healthy; kind none", {}, healthy, 0)), "");
  json v = verdict(1, {0, 2}, 3, 2);
  v["status"] = "healthy";
  ScenarioOutcome o = judge("status healthy; kind none", {}, v, 0);
  EXPECT_EQ(o.score.false_accusations, 1);
  EXPECT_NE(joined(o).find("kind: expected none, got missing-call"), std::string::npos);
}

TEST(ScenarioJudge, NoVerdictIsADifference) {
  for (const char* text : {"", "not json", "[]", "{\"status\": \"hu"}) {
    ScenarioOutcome o = judge_scenario(scene(kExpect), {}, text, 2);
    EXPECT_EQ(o.differences.size(), 1u) << text;
  }
}

TEST(ScenarioJudge, OddlyShapedVerdictsAreSurvived) {
  for (const char* text :
       {"{}", "{\"findings\": 3}", "{\"findings\": [1, null]}",
        "{\"status\": 1, \"findings\": [{\"culprits\": \"x\", \"comm\": null, \"stacks\": [], \"seq\": \"y\"}]}",
        "{\"status\": \"hung\", \"job\": null, \"findings\": [{\"comm\": []}]}"})
    EXPECT_FALSE(judge_scenario(scene(kExpect), {}, text, 1).differences.empty()) << text;
}

}  // namespace
}  // namespace lockstep
