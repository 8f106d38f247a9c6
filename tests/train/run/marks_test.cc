// SPDX-License-Identifier: MIT
//
// What a training tells Lockstep: step, phase and sample, by each rank. The mark function is this file's, in the place
// of the shim's.

#include <gtest/gtest.h>
#include <lockstep.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "tests/train/run/harness.h"

namespace {

struct Marks {
  std::vector<uint64_t> steps;
  std::vector<std::string> samples, phases;
};
std::mutex g_mutex;
std::map<std::thread::id, Marks> g_marks;  // by thread, which is a rank

}  // namespace

extern "C" void lockstep_mark_v1(int kind, uint64_t value, const char* text) {
  const std::lock_guard lock(g_mutex);
  Marks& mine = g_marks[std::this_thread::get_id()];
  if (kind == LOCKSTEP_MARK_STEP) mine.steps.push_back(value);
  if (kind == LOCKSTEP_MARK_SAMPLE) mine.samples.emplace_back(text);
  if (kind == LOCKSTEP_MARK_PHASE && (mine.phases.empty() || mine.phases.back() != text))
    mine.phases.emplace_back(text);
}

namespace train::test {
namespace {

// Of the ranks of a training on a text of 21 samples, of which one is held out.
std::vector<Marks> marks_of(const std::string& options) {
  const std::string path = std::filesystem::temp_directory_path() / ("train-marks-" + std::to_string(getpid()));
  std::ofstream(path) << std::string(21 * 8 + 1, 'x');
  g_marks.clear();
  train_quietly("--layers 1 --heads 2 --width 8 --seq 8 --micro-batch 1 --data " + path + " " + options);
  std::filesystem::remove(path);
  std::vector<Marks> ranks;
  for (auto& [thread, marks] : g_marks) ranks.push_back(std::move(marks));
  return ranks;
}

// One sequence a rank and step: the last sample is the only one, and the marks tell them all.
TEST(Marks, TellEachSampleOnceAnEpoch) {
  const std::vector<Marks> ranks = marks_of("--dp 2 --steps 20");
  ASSERT_EQ(ranks.size(), 2u);
  std::map<std::string, std::multiset<std::string>> epochs;
  for (const Marks& marks : ranks) {
    EXPECT_EQ(marks.samples.size(), 20u);
    for (uint64_t n = 0; n < 20; ++n) EXPECT_EQ(marks.steps.at(n), n + 1);
    for (const std::string& sample : marks.samples) {
      const size_t colon = sample.find(':');
      epochs[sample.substr(0, colon)].insert(sample.substr(colon + 1));
    }
  }
  std::multiset<std::string> all;
  for (int i = 0; i < 20; ++i) all.insert("sample" + std::to_string(i));
  EXPECT_EQ(epochs, (std::map<std::string, std::multiset<std::string>>{{"epoch0", all}, {"epoch1", all}}));
}

TEST(Marks, TellPhasesAndThePartsOfAContext) {
  const std::vector<Marks> ranks = marks_of("--cp 2 --dp 1 --accum 2 --steps 2 --pos rotary");
  ASSERT_EQ(ranks.size(), 2u);
  std::set<std::string> parts;
  for (const Marks& marks : ranks) {
    EXPECT_EQ(marks.phases, (std::vector<std::string>{"forward", "backward", "forward", "backward", "optimizer",
                                                      "forward", "backward", "forward", "backward", "optimizer"}));
    ASSERT_EQ(marks.samples.size(), 2u);
    parts.insert(marks.samples[0].substr(marks.samples[0].rfind(':')));
  }
  EXPECT_EQ(parts, (std::set<std::string>{":part0", ":part1"}));
}

}  // namespace
}  // namespace train::test
