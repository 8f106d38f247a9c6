// SPDX-License-Identifier: MIT
//
// Both reports print one list; the JSON keeps to docs/diagnose-schema.json, whatever the verdict.

#include "tools/report/report.h"

#include <gtest/gtest.h>
#include <string.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tools/hand_made.h"
#include "tools/report/json_schema.h"
#include "tools/report/verdict_form.h"

namespace lockstep::test {
namespace {

using nlohmann::json;

struct Reports {
  json as_json;
  std::string text;
};

Reports report(const HandMadeJob& made) {
  const Judged judged = judge_job(made);
  Job job;
  job.folder = "traces";
  job.left_out = {"x.lstrace: is not a trace"};
  return {json::parse(report_json(job, *judged.evidence, judged.diagnosis)),
          report_text(job, *judged.evidence, judged.diagnosis, false)};
}

void expect_valid(const json& document) {
  const std::vector<std::string> complaints = check_schema(document, json::parse(std::ifstream(DIAGNOSE_SCHEMA)));
  for (const std::string& complaint : complaints) ADD_FAILURE() << complaint;
}

HandMadeJob missing_call(int ranks) {
  std::vector<int> numbers, all;
  for (int rank = 0; rank < ranks; rank++) numbers.push_back(rank), all.push_back(rank);
  HandMadeJob job(ranks, numbers);
  job.comm("world", all);
  for (int rank = 0; rank < ranks; rank++) job.step(rank, rank == 2 ? 4 : 5);
  job.call_all("world", {}, 3);
  for (int rank = 0; rank < ranks; rank++)
    if (rank != 2) job.call(rank, "world");
  job.wait(kThreshold + 5);
  job.sits_in(2, "next_batch");
  return job;
}

// A terminal would obey it.
TEST(Report, ForeignNamesMoveNoCursor) {
  const std::string evil = "\x1b[2J\r";
  HandMadeJob job(3, {0, 1, 2});
  job.comm("tp" + evil, {0, 1, 2});
  job.call_all("tp" + evil, {}, 2);
  for (const int rank : {0, 1}) job.call(rank, "tp" + evil);
  job.wait(kThreshold + 5);
  job.sits_in(2, "next" + evil);
  strcpy(job.file(2).header.host, ("h" + evil).c_str());
  const std::string text = report(job).text;
  EXPECT_EQ(text.find_first_of("\x1b\r"), std::string::npos) << text;
  EXPECT_NE(text.find("next\\x1b[2J\\r"), std::string::npos) << text;
}

TEST(Report, MissingCall) {
  const Reports reports = report(missing_call(4));
  expect_valid(reports.as_json);
  EXPECT_EQ(reports.as_json["status"], "hung");
  const json& finding = reports.as_json["findings"][0];
  EXPECT_EQ(finding["kind"], "missing-call");
  EXPECT_EQ(finding["culprits"], json::array({2}));
  EXPECT_EQ(finding["victims"], json::array({0, 1, 3}));
  EXPECT_EQ(finding["actual"], (json{{"2", nullptr}}));
  EXPECT_EQ(finding["last_agreed"]["seq"], 2);
  EXPECT_EQ(finding["step"], 4);
  EXPECT_EQ(finding["expected"]["dtype"], "float32");
  EXPECT_EQ(reports.as_json["job"]["steps"], (json{{"min", 4}, {"max", 5}}));
  const std::string first_line = reports.text.substr(0, reports.text.find('\n'));
  for (const char* word : {"hung", "rank 2", "host a", "pid 4002", "AllReduce #3", "world", "next_batch", "step 4"})
    EXPECT_NE(first_line.find(word), std::string::npos) << word << " in: " << first_line;
  EXPECT_NE(reports.text.find("left out: x.lstrace"), std::string::npos);
  EXPECT_EQ(reports.text.find('\033'), std::string::npos);
}

TEST(Report, ManyRanksShareLines) {
  const Reports reports = report(missing_call(512));
  EXPECT_LT(std::count(reports.text.begin(), reports.text.end(), '\n'), 60);
  EXPECT_NE(reports.text.find("0,1,3-511"), std::string::npos) << reports.text;
}

TEST(Report, EveryVerdictIsValidJson) {
  for (int which = 0; which < 8; which++) {
    HandMadeJob job(3, {0, 1, 2});
    job.comm("world", {0, 1, 2});
    job.call_all("world");
    if (which == 1) job.exits(1, 0), job.call(0, "world"), job.wait(1);
    if (which == 2) job.dies(1, 11), job.call(0, "world"), job.wait(1);
    if (which == 3) job.call(0, "world", {abi::Fn::Broadcast, 3, 7, 0, 1}), job.call(1, "world"), job.call(2, "world");
    if (which == 4) job.lose_trace(1);
    if (which == 5) job.comm("late", {0}, trace::CommState::initialising, 3), job.wait(kThreshold + 1);
    if (which == 6) job.wait(kThreshold * 2);
    if (which == 7) job.file(0).header.env_rank = -1, job.file(0).comms.clear(), job.file(1).comms.clear();
    const Reports reports = report(job);
    SCOPED_TRACE(reports.text);
    expect_valid(reports.as_json);
    EXPECT_FALSE(reports.text.empty());
  }
}

TEST(Report, EveryKindIsInTheSchemaAndInTheCatalogue) {
  const json schema = json::parse(std::ifstream(DIAGNOSE_SCHEMA));
  const json& kinds = schema["definitions"]["finding"]["properties"]["kind"]["enum"];
  std::ifstream page(FINDINGS_PAGE);
  const std::string catalogue{std::istreambuf_iterator<char>(page), {}};
  for (const std::string& name : kind_names()) {
    EXPECT_NE(std::find(kinds.begin(), kinds.end(), name), kinds.end()) << name;
    EXPECT_NE(catalogue.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(kind_names().size(), kinds.size());
}

TEST(Report, TheSchemaCheckerCanComplain) {
  json document = report(missing_call(4)).as_json;
  const json schema = json::parse(std::ifstream(DIAGNOSE_SCHEMA));
  ASSERT_TRUE(check_schema(document, schema).empty());
  EXPECT_TRUE(form_complaints(document.dump()).empty());
  EXPECT_EQ(form_complaints("{").size(), 1u);
  json wrong = document;
  wrong["status"] = "fine";
  EXPECT_FALSE(check_schema(wrong, schema).empty());
  EXPECT_FALSE(form_complaints(wrong.dump()).empty());
  wrong = document;
  wrong["findings"][0].erase("culprits");
  EXPECT_FALSE(check_schema(wrong, schema).empty());
  wrong = document;
  wrong["findings"][0]["seq"] = "three";
  EXPECT_FALSE(check_schema(wrong, schema).empty());
  wrong = document;
  wrong["surprise"] = 1;
  EXPECT_FALSE(check_schema(wrong, schema).empty());
}

}  // namespace
}  // namespace lockstep::test
