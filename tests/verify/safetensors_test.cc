// SPDX-License-Identifier: MIT

#include "verify/dump/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/demo/process.h"
#include "tests/verify/files.h"

namespace lockstep::dump {
namespace {

using test::raw_safetensors;
using test::TemporaryFolder;

// The sentence for bytes that are not right; it always begins with the file.
std::string error_of(const std::string& bytes) {
  const Result<Safetensors> file =
      Safetensors::view(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "f.safetensors");
  if (file) return "";
  EXPECT_EQ(file.error().rfind("f.safetensors: ", 0), 0u) << file.error();
  return file.error();
}

void expect_error(const std::string& bytes, const std::string& words) {
  const std::string error = error_of(bytes);
  EXPECT_NE(error.find(words), std::string::npos) << "got: " << error << "\nwanted: " << words;
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const std::string path = folder.path("all.safetensors");
  const uint8_t flags[3] = {1, 0, 1};
  const double numbers[2] = {0.1, -2};
  const float matrix[6] = {1, 2, 3, 4, 5, 6};
  const int64_t scalar = -7;
  const Result<uint64_t> written = write_safetensors(path,
                                                     {{"flags", Dtype::boolean, {3}, flags},
                                                      {"numbers", Dtype::f64, {2}, numbers},
                                                      {"empty", Dtype::f32, {0, 5}, nullptr},
                                                      {"matrix", Dtype::f32, {2, 3}, matrix},
                                                      {"a \"quoted\" näme", Dtype::i64, {}, &scalar}},
                                                     {{"step", "3"}});
  ASSERT_TRUE(written) << written.error();
  EXPECT_EQ(*written, std::filesystem::file_size(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));

  const Result<Safetensors> file = Safetensors::open(path);
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(file->tensors().size(), 5u);
  EXPECT_EQ(file->metadata(), (Metadata{{"step", "3"}}));
  const StoredTensor* found = file->find("matrix");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->dtype, Dtype::f32);
  EXPECT_EQ(found->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(found->data, matrix, sizeof matrix), 0);
  ASSERT_TRUE(file->find("a \"quoted\" näme"));
  EXPECT_EQ(std::memcmp(file->find("a \"quoted\" näme")->data, &scalar, sizeof scalar), 0);
  EXPECT_EQ(std::memcmp(file->find("flags")->data, flags, sizeof flags), 0);
  EXPECT_EQ(file->find("empty")->elements(), 0);
  EXPECT_EQ(file->find("nothing"), nullptr);
  for (const StoredTensor& tensor : file->tensors())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % size_of(tensor.dtype), 0u) << tensor.name;
}

TEST(Safetensors, TwoOfAKindAreNotWritten) {
  const TemporaryFolder folder;
  const float x = 1;
  const Result<uint64_t> written =
      write_safetensors(folder.path("f"), {{"x", Dtype::f32, {1}, &x}, {"x", Dtype::f32, {1}, &x}});
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().find("only one tensor \"x\""), std::string::npos) << written.error();
  EXPECT_FALSE(write_safetensors(folder.path("no/such/folder"), {{"x", Dtype::f32, {1}, &x}}));
  EXPECT_FALSE(write_safetensors(folder.path("f"), {{"\xff", Dtype::f32, {1}, &x}}));
  EXPECT_FALSE(std::filesystem::exists(folder.path("f")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("f.part")));
}

TEST(Safetensors, TheSmallestFilesAreRead) {
  EXPECT_EQ(error_of(raw_safetensors("{}", 0)), "");
  EXPECT_EQ(error_of(raw_safetensors("{}      ", 0)), "");
  EXPECT_EQ(error_of(raw_safetensors(R"({"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1)), "");
}

TEST(Safetensors, DamageToTheFrameIsNamed) {
  expect_error("", "byte 0: the safetensors file is truncated, it ends before its header; expected at least 8 bytes");
  expect_error("1234567", "byte 7: the safetensors file is truncated");
  expect_error("<html>\r\n<body>", "is it a safetensors file?");
  expect_error(raw_safetensors("{}", 0).substr(0, 9),
               "byte 9: the safetensors file is truncated, it ends in its header; expected at least 10 bytes: copy");
  expect_error(raw_safetensors("{\"x\": }", 0), "byte 15: the header is not JSON");
  expect_error(raw_safetensors("", 0), "not JSON");
  expect_error(raw_safetensors("[]", 0), "expected the header, a JSON object");
  expect_error(raw_safetensors("{\"\xff\": 1}", 0), "not JSON");
  expect_error(raw_safetensors("{} {}", 0), "not JSON");
  expect_error(raw_safetensors("{\"__metadata__\": 1e9999}", 0), "the header has a number that is larger than any");
}

TEST(Safetensors, DamageToATensorIsNamed) {
  const auto one = [](const std::string& entry, size_t bytes) {
    return raw_safetensors("{\"x\":" + entry + "}", bytes);
  };
  expect_error(one("5", 0), "tensor \"x\": expected {\"dtype\"");
  expect_error(one(R"({"dtype":"F32","shape":[2]})", 8), "tensor \"x\": expected {\"dtype\"");
  expect_error(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8), "expected {\"dtype\"");
  expect_error(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})", 8), "expected {\"dtype\"");
  expect_error(one(R"({"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]})", 8),
               "its dtype F8_E5M2 is none of F64 F32");
  expect_error(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8), "are not the 12 that F32 [3] takes");
  expect_error(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8), "are not the 8");
  expect_error(one(R"({"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,8]})", 8), "too many elements");
  expect_error(one(R"({"dtype":"F64","shape":[9223372036854775807],"data_offsets":[0,8]})", 8), "too many elements");
  expect_error(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 7), "truncated");
  expect_error(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 9), "1 bytes follow that no tensor claims");
  expect_error(one(R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})", 12), "nothing claims these");
}

TEST(Safetensors, HolesOverlapsAndDoubleNamesAreNamed) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const auto two = [&](const std::string& b, size_t bytes) { return raw_safetensors("{" + a + "," + b + "}", bytes); };
  const std::string good = two(R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})", 8);
  EXPECT_EQ(error_of(good), "");
  const std::string place = "byte " + std::to_string(good.size() - 8 + 3);
  expect_error(two(R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]})", 7),
               place + ": tensor \"b\" overlaps \"a\"");
  expect_error(two(R"("b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]})", 9), "tensor \"b\" begins 1 bytes after");
  expect_error(two(R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})", 8), "the name \"a\" twice");
  expect_error(two(R"("__metadata__":{"k":"1","k":"2"})", 4), "the name \"k\" twice");
  expect_error(two(R"("__metadata__":{"k":1})", 4), "\"k\" is not a text");
  expect_error(two(R"("__metadata__":[])", 4), "__metadata__ is not an object");
}

TEST(Safetensors, AFileCutAnywhereIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.path("f");
  const double x[2] = {1, 2};
  ASSERT_TRUE(write_safetensors(path, {{"x", Dtype::f64, {2}, x}}));
  const std::string whole = test::read_text(path);
  ASSERT_EQ(error_of(whole), "");
  for (size_t size = 0; size < whole.size(); size++) EXPECT_NE(error_of(whole.substr(0, size)), "") << size;
}

TEST(Safetensors, WhatIsNoFileIsRefused) {
  const TemporaryFolder folder;
  const Result<Safetensors> missing = Safetensors::open(folder.path("none"));
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().find("No such file"), std::string::npos) << missing.error();
  const Result<Safetensors> directory = Safetensors::open(folder.path("."));
  ASSERT_FALSE(directory);
  EXPECT_NE(directory.error().find("not a file"), std::string::npos) << directory.error();
}

}  // namespace
}  // namespace lockstep::dump
