// SPDX-License-Identifier: MIT
//
// `lockstep compare` and `lockstep show` as they are used: answers, exit statuses, JSON by its schema.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/demo/process.h"
#include "tests/verify/files.h"
#include "tests/verify/made_dumps.h"
#include "tools/report/json_schema.h"

namespace lockstep::test {
namespace {

using nlohmann::json;

Outcome lockstep(std::vector<std::string> words) {
  words.insert(words.begin(), LOCKSTEP_CLI);
  return run_program(words, std::chrono::seconds(50));
}

json checked_json(const std::string& a, const std::string& b) {
  const Outcome outcome = lockstep({"compare", "--json", a, b});
  const json document = json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(document.is_discarded()) << outcome.out << outcome.err;
  const json schema = json::parse(read_text(COMPARE_SCHEMA));
  EXPECT_EQ(check_schema(document, schema), std::vector<std::string>{});
  return document;
}

bool says(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

// Two folders: one rank, and two that hold halves, whose gradient is `factor` times the other's.
void write_both(const TemporaryFolder& folder, double factor) {
  const MadeTensor grad = made("grad", {6, 4}), param = made("param", {6, 4}, Dtype::f32);
  MadeTensor scaled = grad;
  for (double& value : scaled.values) value *= factor;
  MadeDump a(folder.path("a"), 1), b(folder.path("b"), 2);
  for (int64_t step = 1; step <= 3; step++) {
    a.tensor(step, 0, "grad/w", grad, whole(grad)).tensor(step, 0, "param/w", param, whole(param));
    a.metrics_on_all({.step = step, .loss = 5.25});
    for (int64_t rank = 0; rank < 2; rank++) {
      const Placement half = sliced(grad, {{rank * 3, rank * 3 + 3}, {0, 4}});
      b.tensor(step, static_cast<int>(rank), "grad/w", step == 1 ? grad : scaled, half);
      b.tensor(step, static_cast<int>(rank), "param/w", param, whole(param, Kind::replica));
    }
    b.metrics_on_all({.step = step, .loss = 5.25});
  }
  a.write();
  b.write();
}

TEST(CompareCommand, TheSame) {
  const TemporaryFolder folder;
  write_both(folder, 1);
  const Outcome outcome = lockstep({"compare", folder.path("a"), folder.path("b")});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out.rfind("same: 3 steps, 2 tensors, 1 metric, bitwise\n", 0), 0u) << outcome.out;
  EXPECT_TRUE(says(outcome.out, "a flipped bit is seen")) << outcome.out;
  EXPECT_EQ(outcome.err, "");
  const json document = checked_json(folder.path("a"), folder.path("b"));
  EXPECT_EQ(document["status"], "same");
  EXPECT_EQ(document["first"], nullptr);
  EXPECT_EQ(document["b"]["ranks"], 2);
  EXPECT_EQ(document["controls"].size(), 3u);
}

TEST(CompareCommand, Different) {
  const TemporaryFolder folder;
  write_both(folder, 2);
  const Outcome outcome = lockstep({"compare", folder.path("a"), folder.path("b")});
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out.rfind("different from step 2: grad/w: relative error 1, tolerance 1e-12\n", 0), 0u)
      << outcome.out;
  EXPECT_TRUE(says(outcome.out, "B is 2 times A, the number of B's ranks")) << outcome.out;
  EXPECT_TRUE(says(outcome.out, "24 of 24 elements, all within [0:6, 0:4]; A: rank 0, B: ranks 0,1")) << outcome.out;
  const json document = checked_json(folder.path("a"), folder.path("b"));
  EXPECT_EQ(document["status"], "different");
  EXPECT_EQ(document["first"]["name"], "grad/w");
  EXPECT_EQ(document["first"]["step"], 2);
  EXPECT_EQ(document["first"]["values"]["ratio"], 2.0);
  EXPECT_EQ(document["all_differences"], 2);
  EXPECT_EQ(lockstep({"compare", folder.path("a"), folder.path("b"), "--step", "1"}).status, 0);
  EXPECT_EQ(lockstep({"compare", folder.path("a"), folder.path("b"), "--only", "param/*"}).status, 0);
}

TEST(CompareCommand, NotComplete) {
  const TemporaryFolder folder;
  write_both(folder, 1);
  std::filesystem::remove_all(folder.path("b/step000003"));
  const Outcome outcome = lockstep({"compare", folder.path("a"), folder.path("b")});
  EXPECT_EQ(outcome.status, 3) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out.rfind("incomplete: only A has tensors of step 3; what was compared is the same: 3 steps", 0),
            0u)
      << outcome.out;
  EXPECT_EQ(checked_json(folder.path("a"), folder.path("b"))["status"], "incomplete");
}

TEST(CompareCommand, Unusable) {
  const TemporaryFolder folder;
  write_both(folder, 1);
  const auto sentence = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "compare");
    const Outcome outcome = lockstep(words);
    EXPECT_EQ(outcome.status, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return outcome.err;
  };
  const std::string a = folder.path("a"), b = folder.path("b");
  EXPECT_TRUE(says(sentence({a}), "B is required"));
  EXPECT_TRUE(says(sentence({a, folder.path("none")}), "none: expected a dump folder, found nothing"));
  EXPECT_TRUE(says(sentence({a, b, "--rtol", "2"}), "--rtol"));
  EXPECT_TRUE(says(sentence({a, b, "--rtol", "nan"}), "expected a relative error from 0 to below 1, found \"nan\""));
  EXPECT_TRUE(says(sentence({a, b, "--step", "-1"}), "expected the number of a step, 0 or more, found \"-1\""));
  const Outcome full = run_program({"sh", "-c", LOCKSTEP_CLI " compare --help > /dev/full"}, std::chrono::seconds(50));
  EXPECT_EQ(full.status, 2) << "nobody could read the answer";
  EXPECT_TRUE(says(full.err, "standard output could not be written"));
  EXPECT_TRUE(says(sentence({a, b, "--step", "9"}), "neither folder has that step"));
  EXPECT_TRUE(says(sentence({a, b, "--only", "x"}), "no tensor and no metric"));
  const std::string file = folder.path("b/step000002/rank00001.safetensors");
  write_text(file, read_text(file).substr(0, 900));
  EXPECT_TRUE(
      says(sentence({a, b}), "rank00001.safetensors: byte 900: the safetensors file is truncated, it ends in "));
}

TEST(ShowCommand, TensorFiles) {
  const TemporaryFolder folder;
  write_both(folder, 1);
  const std::string file = folder.path("b/step000002/rank00001.safetensors");
  const Outcome text = lockstep({"show", file});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(says(text.out, "grad/w   F64  [3, 4]         owned, [3:6, 0:4] of [6, 4]; min -")) << text.out;
  EXPECT_TRUE(says(text.out, "param/w  F32  [6, 4]         replica, whole; min -")) << text.out;
  const Outcome out = lockstep({"show", "--json", file});
  const json document = json::parse(out.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << out.out;
  EXPECT_EQ(document["metadata"]["rank"], "1");
  EXPECT_EQ(document["tensors"][0]["placement"]["slice"], json::parse("[[3, 6], [0, 4]]"));
  write_text(file, "no tensors");
  const Outcome bad = lockstep({"show", file});
  EXPECT_EQ(bad.status, 2);
  EXPECT_TRUE(says(bad.err, "is it a safetensors file?")) << bad.err;
}

// What the page for users of PyTorch says is what works.
TEST(CompareCommand, TheExampleOfThePage) {
  if (std::string(TEST_PYTHON).empty()) GTEST_SKIP() << "no python3 on this machine";
  const TemporaryFolder folder;
  if (run_program({TEST_PYTHON, "-c", "import numpy"}, std::chrono::seconds(50)).status != 0)
    GTEST_SKIP() << "python3 has no numpy; install python3-numpy";
  const Outcome python = run_program({TEST_PYTHON, DUMP_EXAMPLE, DUMP_PAGE, folder.path("")}, std::chrono::seconds(50));
  ASSERT_EQ(python.status, 0) << python.err;
  const Outcome outcome = lockstep({"compare", folder.path("one"), folder.path("tp2")});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out.rfind("same: 1 step, 2 tensors, 2 metrics, bitwise", 0), 0u) << outcome.out;
}

}  // namespace
}  // namespace lockstep::test
