// SPDX-License-Identifier: MIT

#include "verify/dump/folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/demo/process.h"
#include "tests/verify/files.h"
#include "verify/dump/writer.h"

namespace lockstep::dump {
namespace {

using test::TemporaryFolder;

void write_rank(const std::string& folder, int64_t step, int rank, int world_size) {
  Writer writer(folder, rank, world_size);
  const float value = 1;
  writer.begin_step(step);
  writer.tensor("param/w", Dtype::f32, &value, {1}, {{1}, {}, {}, Placement::Kind::replica});
  writer.end_step();
}

std::string error_of(const std::string& path, int64_t step = 1) {
  const Result<DumpFolder> folder = open_folder(path);
  if (!folder) return folder.error();
  const Result<DumpStep> opened = open_step(*folder, step);
  return opened ? "" : opened.error();
}

void expect_error(const std::string& path, const std::string& words) {
  const std::string error = error_of(path);
  EXPECT_NE(error.find(words), std::string::npos) << "got: " << error << "\nwanted: " << words;
}

// As numbers: rank 11 comes after rank 2, step 1000000 after step 999999.
TEST(Folder, NamesAreReadAsNumbers) {
  const TemporaryFolder folder;
  const std::string dump = folder.path("d");
  for (int rank = 0; rank < 12; rank++) write_rank(dump, 1, rank, 12);
  write_rank(dump, 999'999, 0, 1);
  write_rank(dump, 1'000'000, 0, 1);
  const auto step = [&](const std::string& name) { return dump + "/step000001/" + name + ".safetensors"; };
  std::filesystem::rename(step("rank00011"), step("rank11"));
  std::filesystem::rename(step("rank00002"), step("rank2"));
  const Result<DumpFolder> read = open_folder(dump);
  ASSERT_TRUE(read) << read.error();
  ASSERT_EQ(read->steps.size(), 3u);
  EXPECT_EQ(read->steps.rbegin()->first, 1'000'000);
  const Result<DumpStep> opened = open_step(*read, 1);
  ASSERT_TRUE(opened) << opened.error();
  EXPECT_EQ(opened->missing_ranks, std::vector<int>{});
  for (int rank = 0; rank < 12; rank++) EXPECT_EQ(opened->tensors.at("param/w")[static_cast<size_t>(rank)].rank, rank);
}

TEST(Folder, MissingRanksAreListed) {
  const TemporaryFolder folder;
  write_rank(folder.path("d"), 1, 1, 4);
  test::write_text(folder.path("d/step000001/rank00003.safetensors.part"), "half");
  const Result<DumpFolder> read = open_folder(folder.path("d"));
  ASSERT_TRUE(read) << read.error();
  ASSERT_EQ(read->notes.size(), 1u);
  EXPECT_NE(read->notes[0].find("rank00003.safetensors.part was left by a rank"), std::string::npos);
  const Result<DumpStep> opened = open_step(*read, 1);
  ASSERT_TRUE(opened) << opened.error();
  EXPECT_EQ(opened->missing_ranks, (std::vector<int>{0, 2, 3}));
}

TEST(Folder, WhatIsPassedOverIsSaid) {
  const TemporaryFolder folder;
  const std::string dump = folder.path("d");
  write_rank(dump, 1, 0, 1);
  for (const char* name : {"stepfoo", "step000009"}) std::filesystem::create_directories(dump + "/" + name);
  for (const char* name : {"rankxx.safetensors", "rank99999999999.safetensors", "rank1.npz", "a", "b", "c", "d"})
    test::write_text(dump + "/step000001/" + name, "x");
  test::write_text(dump + "/notes.txt", "x");
  const Result<DumpFolder> read = open_folder(dump);
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(read->steps.size(), 1u);
  ASSERT_EQ(read->notes.size(), 3u);
  EXPECT_NE(read->notes[0].find("step000001: passed over a, b, c, d, rank1.npz and 2 more; in this folder"),
            std::string::npos)
      << read->notes[0];
  EXPECT_NE(read->notes[1].find("step000009: passed over, for it holds no rank's file"), std::string::npos);
  EXPECT_NE(read->notes[2].find("d: passed over notes.txt, stepfoo; in this folder"), std::string::npos);
}

TEST(Folder, WhatIsNoDumpIsRefused) {
  const TemporaryFolder folder;
  expect_error(folder.path("none"), "expected a dump folder, found nothing");
  test::write_text(folder.path("file"), "x");
  expect_error(folder.path("file"), "expected a dump folder, found a file");
  std::filesystem::create_directories(folder.path("empty/step000001"));
  expect_error(folder.path("empty"), "neither metrics.jsonl nor");
  test::write_text(folder.path("empty/metrics.jsonl"), "{\"step\":1,\"rank\":0}\n");
  expect_error(folder.path("empty"), "there is no step 1");
  test::write_text(folder.path("empty/metrics.jsonl"), "loss 5\nloss 4\n");
  expect_error(folder.path("empty"), "metrics.jsonl: line 1: expected a JSON object");
}

TEST(Folder, AStepIsNoDump) {
  const TemporaryFolder folder;
  write_rank(folder.path("d"), 1, 0, 1);
  expect_error(folder.path("d/step000001"), "step000001: this is one step of a dump; name the folder that it is in");
}

TEST(Folder, TwoRunsInOneFolderAreRefused) {
  const TemporaryFolder folder;
  write_rank(folder.path("d"), 1, 0, 2);
  write_rank(folder.path("d"), 1, 1, 4);
  expect_error(folder.path("d"), "two runs");
  write_rank(folder.path("e"), 1, 0, 1);
  write_rank(folder.path("e"), 1, 2, 4);
  expect_error(folder.path("e"), "two runs");
}

TEST(Folder, FilesThatWereMovedAreRefused) {
  const TemporaryFolder folder;
  write_rank(folder.path("d"), 1, 0, 2);
  const std::string file = folder.path("d/step000001/rank00000.safetensors");
  std::filesystem::copy_file(file, folder.path("d/step000001/rank00001.safetensors"));
  expect_error(folder.path("d"), "metadata say rank 0, its place in the folder 1");
  std::filesystem::rename(folder.path("d/step000001/rank00001.safetensors"),
                          folder.path("d/step000001/rank0.safetensors"));
  expect_error(folder.path("d"), "are both of rank 0");
  std::filesystem::remove(folder.path("d/step000001/rank0.safetensors"));
  std::filesystem::rename(folder.path("d/step000001"), folder.path("d/step1"));
  EXPECT_EQ(error_of(folder.path("d")), "");
  std::filesystem::create_directories(folder.path("d/step000001"));
  expect_error(folder.path("d"), "another folder for step 1");
}

TEST(Folder, MetadataMustBeOurs) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("d/step000001"));
  const auto write = [&](const std::string& metadata) {
    const std::string header =
        "{\"__metadata__\":{" + metadata + "},\"w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    test::write_text(folder.path("d/step000001/rank00000.safetensors"), test::raw_safetensors(header, 2));
  };
  write("");
  EXPECT_EQ(error_of(folder.path("d")), "");
  write("\"format\":\"pt\"");
  EXPECT_EQ(error_of(folder.path("d")), "");
  write("\"lockstep_dump\":\"2\"");
  expect_error(folder.path("d"), "a dump of format 2; this program knows format 1");
  write("\"world_size\":\"many\"");
  expect_error(folder.path("d"), "world_size \"many\"");
  write("\"computed_in\":\"FP16\"");
  expect_error(folder.path("d"), "computed_in \"FP16\"; expected F64, F32, F16 or BF16");
  write("\"placement:v\":\"{}\"");
  expect_error(folder.path("d"), "but there is no tensor \"v\" in it");
  write("\"placement:w\":\"whole\"");
  expect_error(folder.path("d"), "tensor \"w\": its placement is not a JSON object");
}

}  // namespace
}  // namespace lockstep::dump
