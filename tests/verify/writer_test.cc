// SPDX-License-Identifier: MIT

#include "verify/dump/writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <thread>

#include "tests/demo/process.h"
#include "tests/verify/files.h"
#include "verify/dump/folder.h"

namespace lockstep::dump {
namespace {

using Kind = Placement::Kind;
using test::TemporaryFolder;

const Placement kWhole4{{4}, {}, {}, Kind::replica};

TEST(Writer, AStepIsReadAsItWasWritten) {
  const TemporaryFolder folder;
  const float values[4] = {1, 2, 3, 4};
  const uint8_t mask[3] = {1, 1, 0};
  Writer writer(folder.path("d"), 1, 2);
  writer.begin_step(7);
  writer.tensor("batch/mask", Dtype::boolean, mask, {3}, {{6}, {{3, 6}}, {}, Kind::owned});
  writer.tensor("param/w", Dtype::f32, values, {4}, kWhole4);
  writer.tensor("grad/w", Dtype::f32, values, {1, 4}, {{2, 4}, {{1, 2}, {0, 4}}, {}, Kind::owned});
  EXPECT_FALSE(std::filesystem::exists(folder.path("d/step000007/rank00001.safetensors")));
  writer.end_step();

  const Result<DumpFolder> read = open_folder(folder.path("d"));
  ASSERT_TRUE(read) << read.error();
  const Result<DumpStep> step = open_step(*read, 7);
  ASSERT_TRUE(step) << step.error();
  EXPECT_EQ(step->world_size, 2);
  EXPECT_EQ(step->missing_ranks, (std::vector<int>{0}));
  ASSERT_EQ(step->tensors.size(), 3u);
  const Shard& grad = step->tensors.at("grad/w").at(0);
  EXPECT_EQ(grad.rank, 1);
  EXPECT_EQ(grad.placement.slice, (std::vector<Range>{{1, 2}, {0, 4}}));
  EXPECT_EQ(std::memcmp(grad.stored->data, values, sizeof values), 0);
  EXPECT_EQ(std::memcmp(step->tensors.at("batch/mask").at(0).stored->data, mask, sizeof mask), 0);
  EXPECT_EQ(step->tensors.at("param/w").at(0).placement.kind, Kind::replica);
}

TEST(Writer, NotesStandInTheStepsFile) {
  const TemporaryFolder folder;
  Writer writer(folder.path("d"), 0, 1);
  EXPECT_THROW(writer.note("mine", "x"), std::runtime_error);  // of no step
  writer.begin_step(1);
  writer.note("mine", "{\"a\": 1}");
  for (const char* taken : {"mine", "step", "world_size", "computed_in", "placement:x"})
    EXPECT_THROW(writer.note(taken, "x"), std::runtime_error) << taken;
  writer.end_step();
  writer.begin_step(2);
  writer.end_step();
  const Result<DumpFolder> read = open_folder(folder.path("d"));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(open_step(*read, 1)->files.front().metadata().at("mine"), "{\"a\": 1}");
  EXPECT_EQ(open_step(*read, 2)->files.front().metadata().count("mine"), 0u);
}

// The first step does not know how much room its header takes, the later ones do.
TEST(Writer, HeadersOfAnySizeFit) {
  const TemporaryFolder folder;
  Writer writer(folder.path("d"), 0, 1);
  for (int step = 0; step < 3; step++) {
    writer.begin_step(step);
    for (int i = 0; i < (step == 2 ? 10 : 300); i++) {
      const double value[1] = {step * 1000.0 + i};
      writer.tensor("param/" + std::to_string(i), Dtype::f64, value, {1}, {{1}, {}, {}, Kind::owned});
    }
    writer.end_step();
  }
  const Result<DumpFolder> read = open_folder(folder.path("d"));
  ASSERT_TRUE(read) << read.error();
  for (int number = 0; number < 3; number++) {
    const Result<DumpStep> step = open_step(*read, number);
    ASSERT_TRUE(step) << step.error();
    ASSERT_EQ(step->tensors.size(), number == 2 ? 10u : 300u);
    for (const auto& [name, shards] : step->tensors) {
      double value = 0;
      to_double(Dtype::f64, shards[0].stored->data, 1, &value);
      EXPECT_EQ(value, number * 1000 + std::stoi(name.substr(6)));
    }
  }
}

TEST(Writer, EveryTensorIsAligned) {
  const TemporaryFolder folder;
  const char bytes[64] = {};
  Writer writer(folder.path("d"), 0, 1);
  writer.begin_step(1);
  int number = 0;
  for (const Dtype dtype : {Dtype::u8, Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::i8, Dtype::f32, Dtype::i64})
    for (const int64_t count : {1, 3, 4})
      writer.tensor("t" + std::to_string(number++), dtype, bytes, {count}, {{count}, {}, {}, Kind::owned});
  writer.end_step();
  const Result<Safetensors> file = Safetensors::open(folder.path("d/step000001/rank00000.safetensors"));
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(file->tensors().size(), 21u);
  for (const StoredTensor& tensor : file->tensors())
    EXPECT_EQ(tensor.offset % size_of(tensor.dtype), 0u) << tensor.name;
}

TEST(Writer, RanksMayBeThreads) {
  constexpr int kRanks = 8, kSteps = 5;
  const TemporaryFolder folder;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; rank++)
    ranks.emplace_back([&, rank] {
      Writer writer(folder.path("d"), rank, kRanks);
      for (int step = 1; step <= kSteps; step++) {
        const float mine = static_cast<float>(rank);
        writer.begin_step(step);
        writer.tensor("param/w", Dtype::f32, &mine, {1}, {{kRanks}, {{rank, rank + 1}}, {}, Kind::owned});
        writer.metrics({.step = step, .rank = rank, .loss = 1.5, .tokens = 100});
        writer.end_step();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  const Result<DumpFolder> read = open_folder(folder.path("d"));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(read->metrics.size(), static_cast<size_t>(kRanks * kSteps));
  EXPECT_EQ(read->notes, std::vector<std::string>{});
  for (int step = 1; step <= kSteps; step++) {
    const Result<DumpStep> opened = open_step(*read, step);
    ASSERT_TRUE(opened) << opened.error();
    EXPECT_EQ(opened->missing_ranks, std::vector<int>{});
    EXPECT_EQ(opened->tensors.at("param/w").size(), static_cast<size_t>(kRanks));
  }
}

TEST(Writer, AnUnfinishedStepLeavesNothing) {
  const TemporaryFolder folder;
  {
    Writer writer(folder.path("d"), 0, 1);
    writer.begin_step(1);
    writer.tensor("param/w", Dtype::f32, "12345678abcdefgh", {4}, kWhole4);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("d/step000001")));
}

void expect_thrown(const std::string& words, const std::function<void()>& what) {
  try {
    what();
    ADD_FAILURE() << "nothing was thrown, wanted: " << words;
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Writer, MisuseIsSaidAtOnce) {
  const TemporaryFolder folder;
  const float values[4] = {};
  expect_thrown("no rank 2 of 2", [&] { Writer(folder.path("d"), 2, 2); });
  test::write_text(folder.path("file"), "x");
  expect_thrown("cannot be made", [&] { Writer(folder.path("file/d"), 0, 1); });
  Writer writer(folder.path("d"), 0, 1);
  expect_thrown("between begin_step and end_step", [&] { writer.tensor("w", Dtype::f32, values, {4}, kWhole4); });
  expect_thrown("without begin_step", [&] { writer.end_step(); });
  expect_thrown("from 0", [&] { writer.begin_step(-1); });
  writer.begin_step(1);
  expect_thrown("before the one of step 1 has ended", [&] { writer.begin_step(2); });
  writer.tensor("w", Dtype::f32, values, {4}, kWhole4);
  expect_thrown("in this step already", [&] { writer.tensor("w", Dtype::f32, values, {4}, kWhole4); });
  expect_thrown("is not the global shape", [&] { writer.tensor("v", Dtype::f32, values, {3}, kWhole4); });
  writer.end_step();
}

}  // namespace
}  // namespace lockstep::dump
