// SPDX-License-Identifier: MIT

#include "verify/dump/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::dump {
namespace {

std::vector<std::string> notes, missing;

Result<std::vector<Metrics>> read(const std::string& text) {
  notes.clear();
  missing.clear();
  return read_metrics("m.jsonl", text, notes, missing);
}

TEST(Metrics, GoThroughTheirLine) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::string text = metrics_line(
      {.step = 3, .rank = 1, .loss = 0.1, .tokens = 99, .norm = 1e-300, .lr = 3e-4, .loss_scale = 65536.0});
  text += metrics_line({.step = 2, .rank = 0, .loss = std::nan(""), .norm = infinity, .lr = -infinity});
  const Result<std::vector<Metrics>> lines = read(text);
  ASSERT_TRUE(lines) << lines.error();
  ASSERT_EQ(lines->size(), 2u);
  const Metrics& first = (*lines)[0];
  EXPECT_EQ(first.step, 2);
  EXPECT_TRUE(std::isnan(first.loss.value()));
  EXPECT_EQ(first.norm, infinity);
  EXPECT_EQ(first.lr, -infinity);
  EXPECT_EQ(first.tokens, std::nullopt);
  EXPECT_EQ(first.loss_scale, std::nullopt);
  const Metrics& second = (*lines)[1];
  EXPECT_EQ(second.rank, 1);
  EXPECT_EQ(second.loss, 0.1);
  EXPECT_EQ(second.tokens, 99);
  EXPECT_EQ(second.norm, 1e-300);
  EXPECT_EQ(notes, std::vector<std::string>{});
}

TEST(Metrics, PythonsWordsAreUnderstood) {
  const auto lines =
      read("{\"step\": 1, \"rank\": 0, \"loss\": NaN, \"norm\": -Infinity, \"a \\\"NaN\": \"Infinity\"}\n\n");
  ASSERT_TRUE(lines) << lines.error();
  EXPECT_TRUE(std::isnan(lines->at(0).loss.value()));
  EXPECT_EQ(lines->at(0).norm, -std::numeric_limits<double>::infinity());
}

TEST(Metrics, TheLastLineOfAStepAndRankCounts) {
  const auto lines = read("{\"step\":1,\"rank\":0,\"loss\":1}\n{\"step\":1,\"rank\":0,\"loss\":2}\n");
  ASSERT_TRUE(lines) << lines.error();
  ASSERT_EQ(lines->size(), 1u);
  EXPECT_EQ(lines->at(0).loss, 2.0);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("1 lines were replaced"), std::string::npos);
}

TEST(Metrics, ATornLastLineIsLeftOutAndSaid) {
  const auto lines = read("{\"step\":1,\"rank\":0,\"loss\":1}\n{\"step\":2,\"ra");
  ASSERT_TRUE(lines) << lines.error();
  EXPECT_EQ(lines->size(), 1u);
  EXPECT_EQ(notes, std::vector<std::string>{});
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_NE(missing[0].find("line 2 is cut off"), std::string::npos);
}

TEST(Metrics, ALastLineWithoutItsEndIsWholeOrWrong) {
  const auto whole = read("{\"step\":1,\"rank\":0,\"loss\":1}\n{\"step\":2,\"rank\":0}");
  ASSERT_TRUE(whole) << whole.error();
  EXPECT_EQ(whole->size(), 2u);
  EXPECT_EQ(missing, std::vector<std::string>{});
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("line 2 has no end of line"), std::string::npos);
  EXPECT_FALSE(read("{\"step\":2,\"rank\":-1}"));  // not cut off
}

TEST(Metrics, AWrongLineIsNamed) {
  const std::string good = "{\"step\":1,\"rank\":0}\n";
  for (const auto& [line, words] : {std::pair<std::string, std::string>{"{\"step\":1,", "expected a JSON object"},
                                    {"[]", "expected a JSON object"},
                                    {"{\"rank\":0}", "\"step\" and \"rank\""},
                                    {"{\"step\":1.5,\"rank\":0}", "\"step\" and \"rank\""},
                                    {"{\"step\":1,\"rank\":-1}", "\"step\" and \"rank\""},
                                    {"{\"step\":1,\"rank\":5000000000}", "\"step\" and \"rank\""},
                                    {"{\"step\":1,\"rank\":0,\"tokens\":1.5}", "\"tokens\""},
                                    {"{\"step\":1,\"rank\":0,\"loss\":\"high\"}", "\"loss\" is not a number"}}) {
    const auto lines = read(good + line + "\n" + good);
    ASSERT_FALSE(lines) << line;
    EXPECT_EQ(lines.error().rfind("m.jsonl: line 2: ", 0), 0u) << lines.error();
    EXPECT_NE(lines.error().find(words), std::string::npos) << lines.error();
  }
}

}  // namespace
}  // namespace lockstep::dump
