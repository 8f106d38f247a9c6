// SPDX-License-Identifier: MIT
//
// The scenario format: what is read, and that a bad file costs one sentence with its place.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tools/scenario/parse_internal.h"
#include "tools/scenario/scenario.h"

namespace lockstep::scenario {
namespace {

constexpr const char* kHead = "title: t\nranks: 3\n";
constexpr const char* kTail = "\nexpect: status healthy\n";

Scenario good(const std::string& middle) {
  Result<Scenario> s = parse_scenario("f.hang", kHead + middle + kTail);
  EXPECT_TRUE(s) << (s ? "" : s.error());
  return s ? *s : Scenario{};
}

std::string error_of(const std::string& text) {
  Result<Scenario> s = parse_scenario("f.hang", text);
  return s ? "no error" : s.error();
}

TEST(ScenarioParse, Settings) {
  Scenario s = good(
      "source: H05 (pytorch#33148)  # a comment\n# another\nthreads: yes\nhang-seconds: 0.5\ndeadline: "
      "9\nkill-on-hang: no\n"
      "untraced: 0,2\nenv: A=b=c\nenv: D=\n");
  EXPECT_EQ(s.title, "t");
  EXPECT_EQ(s.source, "H05 (pytorch#33148)");
  EXPECT_EQ(s.ranks, 3);
  EXPECT_TRUE(s.threads);
  EXPECT_FALSE(s.kill_on_hang);
  EXPECT_DOUBLE_EQ(s.hang_seconds, 0.5);
  EXPECT_DOUBLE_EQ(s.deadline, 9);
  EXPECT_EQ(s.untraced, (std::vector<int>{0, 2}));
  ASSERT_EQ(s.environment.size(), 2u);
  EXPECT_EQ(s.environment[0].second, "b=c");
  EXPECT_EQ(s.environment[1].second, "");
}

TEST(ScenarioParse, ProgramsAreJoinedInTheOrderOfTheFile) {
  Scenario s = good("each: step; sync\nrank 0,2: phase x\nrank 1: sleep forever\neach: step 7\n");
  ASSERT_EQ(s.programs[0].size(), 4u);
  EXPECT_EQ(s.programs[0][0].verb, Verb::step);
  EXPECT_EQ(s.programs[0][0].number, -1);
  EXPECT_EQ(s.programs[0][2].name, "x");
  EXPECT_EQ(s.programs[1][2].seconds, kForever);
  EXPECT_EQ(s.programs[2][3].number, 7);
  EXPECT_EQ(s.programs[2][3].line, 6);
}

TEST(ScenarioParse, Operations) {
  Scenario s =
      good("each: allreduce world 8 bfloat16 avg in-place; broadcast world 4 root 2 int64; send world 5 to 1\n");
  const std::vector<Statement>& p = s.programs[0];
  EXPECT_EQ(p[0].fn, abi::Fn::AllReduce);
  EXPECT_EQ(p[0].count, 8u);
  EXPECT_STREQ(abi::dtype_name(p[0].dtype), "bfloat16");
  EXPECT_STREQ(abi::redop_name(p[0].redop), "avg");
  EXPECT_TRUE(p[0].in_place);
  EXPECT_EQ(p[1].fn, abi::Fn::Broadcast);
  EXPECT_EQ(p[1].rank, 2);
  EXPECT_STREQ(abi::dtype_name(p[1].dtype), "int64");
  EXPECT_EQ(p[2].fn, abi::Fn::Send);
  EXPECT_EQ(p[2].rank, 1);
}

TEST(ScenarioParse, BlocksNestAndSpanLines) {
  Scenario s = good(
      "each: repeat 3 {\n  step   # the next one\n  group { allreduce world 1; allgather world 1 }\n  in evaluate {\n  "
      "  sleep 0.5\n    sync\n  }\n}\n");
  ASSERT_EQ(s.programs[0].size(), 1u);
  const Statement& repeat = s.programs[0][0];
  EXPECT_EQ(repeat.number, 3);
  ASSERT_EQ(repeat.body.size(), 3u);
  EXPECT_EQ(repeat.body[1].verb, Verb::group);
  EXPECT_EQ(repeat.body[1].body.size(), 2u);
  EXPECT_EQ(repeat.body[2].name, "evaluate");
  EXPECT_EQ(repeat.body[2].body[1].line, 8);
}

TEST(ScenarioParse, SamplesMayCarryStepAndRank) {
  Scenario s = good("each: sample shard{rank}:{step}; in evaluate sample x\n");
  EXPECT_EQ(s.programs[0][0].name, "shard{rank}:{step}");
  EXPECT_EQ(s.programs[0][1].body[0].name, "x");
}

TEST(ScenarioParse, Communicators) {
  Scenario s = good("comm world: later\ncomm tp: later split world 0,1 | 2\ncomm dp: 2 0\n");
  EXPECT_TRUE(s.communicators[0].later);
  const Communicator* tp = s.find("tp");
  ASSERT_TRUE(tp);
  EXPECT_EQ(tp->split_from, "world");
  EXPECT_EQ(*tp->group_of(1), (std::vector<int>{0, 1}));
  EXPECT_EQ(*tp->group_of(2), (std::vector<int>{2}));
  EXPECT_EQ(*s.find("dp")->group_of(0), (std::vector<int>{2, 0}));
  EXPECT_EQ(s.find("dp")->group_of(1), nullptr);
  EXPECT_EQ(shifted_by(s, "dp", 4), 4u);
  EXPECT_EQ(shifted_by(s, "world", 4), 0u);
}

TEST(ScenarioParse, Expectation) {
  Result<Expectation> e = parse_expectation("f:1",
                                            "status hung|unknown; kind missing-call; culprits none | 0,2; victims 1; "
                                            "comm tp; seq 3; op AllReduce; step 5; in evaluate; also died 1",
                                            3);
  ASSERT_TRUE(e) << e.error();
  EXPECT_EQ(e->status, (std::vector<std::string>{"hung", "unknown"}));
  ASSERT_EQ(e->culprits.size(), 2u);
  EXPECT_TRUE(e->culprits[0].empty());
  EXPECT_EQ(e->culprits[1], (std::vector<int>{0, 2}));
  EXPECT_EQ(*e->seq, 3u);
  EXPECT_EQ(*e->step, 5u);
  EXPECT_EQ(e->frame, "evaluate");
  EXPECT_EQ(e->also_culprits, (std::vector<int>{1}));
}

std::string read(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Bad {
  const char* text;
  const char* place;   // how the sentence begins
  const char* saying;  // what is in it
};

class ScenarioError : public testing::TestWithParam<Bad> {};

TEST_P(ScenarioError, IsOneSentenceWithItsPlace) {
  std::string error = error_of(GetParam().text);
  EXPECT_EQ(error.rfind(GetParam().place, 0), 0u) << error;
  EXPECT_NE(error.find(GetParam().saying), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

#define HEAD "title: t\nranks: 3\n"
constexpr Bad kBad[] = {
    {"", "f.hang:1: ", "expected \"ranks: N\""},
    {"title: t\nranks: 0\n", "f.hang:2: ", "from 1 to 256, found \"0\""},
    {"title: t\nranks: many\n", "f.hang:2: ", "found \"many\""},
    {"threads: yes\nranks: 3\n", "f.hang:1: ", "before \"threads\""},
    {"ranks: 3\nexpect: status hung\n", "f.hang:2: ", "title"},
    {HEAD "each: sync\n", "f.hang:3: ", "expect: status"},
    {HEAD "nonsense\n", "f.hang:3: ", "expected \"name: value\""},
    {HEAD "colour: red\n", "f.hang:3: ", "\"colour\" is no setting"},
    {HEAD "threads: maybe\n", "f.hang:3: ", "yes or no"},
    {HEAD "title: u\n", "f.hang:3: ", "given twice"},
    {HEAD "hang-seconds: soon\n", "f.hang:3: ", "number of seconds"},
    {HEAD "hang-seconds: 0\n", "f.hang:3: ", "above 0"},
    {HEAD "untraced: 3\n", "f.hang:3: ", "below 3"},
    {HEAD "env: X\n", "f.hang:3: ", "NAME=VALUE"},
    {HEAD "comm dp: 0 3\n", "f.hang:3: ", "below 3, found \"3\""},
    {HEAD "comm dp: 0 1 | 1 2\n", "f.hang:3: ", "rank 1 is in communicator \"dp\" twice"},
    {HEAD "comm dp:\n", "f.hang:3: ", "expected the ranks"},
    {HEAD "comm dp: 0\ncomm dp: 1\n", "f.hang:4: ", "declared twice"},
    {HEAD "comm dp: split tp 0 1\n", "f.hang:3: ", "declared above after \"split\""},
    {HEAD "comm a: 0 1\ncomm b: split a 1 2\n", "f.hang:4: ", "not in the same \"a\""},
    {HEAD "comm world: 0 1\n", "f.hang:3: ", "world always has all ranks"},
    {HEAD "each: sync\ncomm dp: 0\n", "f.hang:4: ", "before the first program"},
    {HEAD "rank 3: sync\n", "f.hang:3: ", "below 3, found \"3\""},
    {HEAD "rank x: sync\n", "f.hang:3: ", "found \"x\""},
    {HEAD "rank 1,1: sync\n", "f.hang:3: ", "expected ranks"},
    {HEAD "each: dance\n", "f.hang:3: ", "\"dance\" is no statement"},
    {HEAD "each: sync; step; step x\n", "f.hang:3: ", "found \"x\""},
    {HEAD "each: repeat 2 {\n step\n dance\n}\n", "f.hang:5: ", "\"dance\""},
    {HEAD "each: repeat 2 {\n step\n", "f.hang:3: ", "never closed"},
    {HEAD "each: repeat two { step }\n", "f.hang:3: ", "found \"two\""},
    {HEAD "each: repeat 2 step\n", "f.hang:3: ", "expected \"{\""},
    {HEAD "each: sync }\n", "f.hang:3: ", "closes nothing"},
    {HEAD "each: sync device now\n", "f.hang:3: ", "found \"now\""},
    {HEAD "each: allreduce\n", "f.hang:3: ", "expected a communicator before the end"},
    {HEAD "each: allreduce dp 8\n", "f.hang:3: ", "no communicator \"dp\""},
    {HEAD "each: allreduce world\n", "f.hang:3: ", "number of elements"},
    {HEAD "each: allreduce world -1\n", "f.hang:3: ", "found \"-1\""},
    {HEAD "each: allreduce world 8 float31\n", "f.hang:3: ", "AllReduce takes no \"float31\""},
    {HEAD "each: allgather world 8 sum\n", "f.hang:3: ", "AllGather takes no \"sum\""},
    {HEAD "each: allreduce world 8 root 1\n", "f.hang:3: ", "AllReduce takes no \"root\""},
    {HEAD "each: broadcast world 8\n", "f.hang:3: ", "Broadcast needs \"root RANK\""},
    {HEAD "each: send world 8\n", "f.hang:3: ", "Send needs \"to RANK\""},
    {HEAD "each: recv world 8 to 1\n", "f.hang:3: ", "Recv takes no \"to\""},
    {HEAD "each: broadcast world 8 root 3\n", "f.hang:3: ", "rank 3 is not in the communicator \"world\""},
    {HEAD "comm dp: 0 1\neach: allreduce dp 8\n", "f.hang:4: ", "rank 2 is not in communicator \"dp\""},
    {HEAD "comm dp: 0 1\nrank 0: group { broadcast dp 8 root 2 }\n", "f.hang:4: ", "rank 2 is not in the communicator"},
    {HEAD "each: sleep long\n", "f.hang:3: ", "found \"long\""},
    {HEAD "each: exit 256\n", "f.hang:3: ", "from 0 to 255"},
    {HEAD "each: in bed sleep 1\n", "f.hang:3: ", "no function \"bed\""},
    {HEAD "each: phase\n", "f.hang:3: ", "name of a phase"},
    {HEAD "expect: kind died\n", "f.hang:3: ", "expected \"status\""},
    {HEAD "expect: status fine\n", "f.hang:3: ", "found \"fine\""},
    {HEAD "expect: status hung; culprits 3\n", "f.hang:3: ", "below 3, or none"},
    {HEAD "expect: status hung; seq x\n", "f.hang:3: ", "a number after \"seq\""},
    {HEAD "expect: status hung; op Nothing\n", "f.hang:3: ", "an NCCL function"},
    {HEAD "expect: status hung; in bed\n", "f.hang:3: ", "a function"},
    {HEAD "expect: status hung; mood bad\n", "f.hang:3: ", "nothing named \"mood\""},
};
#undef HEAD

INSTANTIATE_TEST_SUITE_P(All, ScenarioError, testing::ValuesIn(kBad));

TEST(ScenarioParse, DeepNestingIsRefused) {
  std::string open, close;
  for (int i = 0; i < 40; i++) open += "repeat 1 { ", close += " }";
  EXPECT_NE(error_of(std::string(kHead) + "each: " + open + "step" + close + kTail).find("nested"), std::string::npos);
}

// Cut and damaged files must give a sentence or a scenario, never more.
TEST(ScenarioParse, DamagedFilesAreSurvived) {
  std::mt19937 random(7);
  for (const auto& entry : std::filesystem::directory_iterator(HANGS_DIR)) {
    if (entry.path().extension() != ".hang") continue;
    Result<Scenario> s = load_scenario(entry.path());
    ASSERT_TRUE(s) << s.error();
    std::string text = read(entry.path());
    for (int i = 0; i < 200; i++) {
      std::string damaged = text;
      damaged[random() % damaged.size()] = "{};:| \n0-x#\xff"[random() % 12];
      if (i % 4 == 0) damaged.resize(random() % damaged.size());
      Result<Scenario> r = parse_scenario("f", damaged);
      EXPECT_TRUE(r || r.error().rfind("f:", 0) == 0) << r.error();
    }
  }
}

TEST(ScenarioParse, ThePageExplainsEveryWord) {
  std::string page = read(SCENARIO_PAGE);
  ASSERT_FALSE(page.empty());
  std::vector<std::string> words = statement_words();
  words.insert(words.end(), frame_names().begin(), frame_names().end());
  for (const std::string& w : words)
    EXPECT_TRUE(page.find("`" + w + "`") != std::string::npos || page.find("`" + w + " ") != std::string::npos) << w;
  for (const std::string& w : setting_words())
    EXPECT_TRUE(page.find("`" + w + ": ") != std::string::npos || page.find("`" + w + ":`") != std::string::npos) << w;
}

// Diagnoses are easy on jobs that hang for the obvious reason: at least half of the scenes must be otherwise.
TEST(ScenarioParse, HalfOfTheScenesAreHealthyOrTraps) {
  size_t all = 0, hard = 0;
  for (const auto& entry : std::filesystem::directory_iterator(HANGS_DIR)) {
    if (entry.path().extension() != ".hang") continue;
    Result<Scenario> s = load_scenario(entry.path());
    ASSERT_TRUE(s) << s.error();
    all++;
    const std::vector<std::string>& status = s->expect.status;
    hard += !s->trap.empty() || std::count(status.begin(), status.end(), "healthy") > 0;
  }
  EXPECT_GE(all, 80u);
  EXPECT_GE(2 * hard, all) << hard << " of " << all;
}

// The page of real hangs names scenes: all of them are there.
TEST(ScenarioParse, ThePageOfRealHangsNamesScenesThatExist) {
  const std::string page = read(HANGS_PAGE);
  ASSERT_FALSE(page.empty());
  size_t named = 0;
  for (size_t at = 0; (at = page.find('`', at)) != std::string::npos;) {
    const size_t end = page.find('`', at + 1);
    ASSERT_NE(end, std::string::npos);
    const std::string word = page.substr(at + 1, end - at - 1);
    at = end + 1;
    if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") != std::string::npos || word[0] == '-')
      continue;
    named++;
    EXPECT_TRUE(std::filesystem::exists(std::string(HANGS_DIR) + "/" + word + ".hang")) << word;
  }
  EXPECT_GE(named, 80u);
}

// And every scene is on the page.
TEST(ScenarioParse, ThePageOfRealHangsNamesEveryScene) {
  const std::string page = read(HANGS_PAGE);
  for (const auto& entry : std::filesystem::directory_iterator(HANGS_DIR)) {
    if (entry.path().extension() != ".hang") continue;
    const std::string name = entry.path().stem();
    EXPECT_NE(page.find("`" + name + "`"), std::string::npos) << name;
  }
}

TEST(ScenarioParse, MissingFileAndFolder) {
  for (const char* path : {"/nonexistent.hang", "/tmp"}) {
    Result<Scenario> s = load_scenario(path);
    ASSERT_FALSE(s);
    EXPECT_NE(s.error().find(path), std::string::npos);
  }
}

TEST(ScenarioPermutation, IsAPermutationAndTheSameEverywhere) {
  EXPECT_EQ(permutation(0, 4), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(permutation(7, 4), permutation(7, 4));
  std::vector<std::vector<int>> seen;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    std::vector<int> p = permutation(seed, 3), sorted = p;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, (std::vector<int>{0, 1, 2}));
    if (std::find(seen.begin(), seen.end(), p) == seen.end()) seen.push_back(p);
  }
  EXPECT_EQ(seen.size(), 6u);
}

}  // namespace
}  // namespace lockstep::scenario
