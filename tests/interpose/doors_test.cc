// SPDX-License-Identifier: MIT
//
// Every door through which a program may come to NCCL, other than being linked to it: a Python client with ctypes, by name and
// by path, several copies of libnccl in one process, extensions in a private scope. Each is run with and without the shim
// and must not be able to tell; and what it called is on record, once, and reached the copy it was meant for.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::TempFolder;
using trace::TraceFile;

const std::string kShim = SHIM_LIBRARY, kNccl = FAKE_NCCL, kPlugin = SHIM_PLUGIN, kLoner = SHIM_LONER;
const std::string kPython = "/usr/bin/python3", kScript = LOCKSTEP_SOURCE "/tests/interpose/doors.py";

class Doors : public testing::Test {
 protected:
  void SetUp() override {
    if (access(kPython.c_str(), X_OK) != 0) GTEST_SKIP() << "there is no " << kPython << " on this machine";
  }
  // With the shim and without; the two must print the same.
  Outcome python(std::vector<std::string> arguments, const Environment& extra = {}) {
    arguments.insert(arguments.begin(), {kPython, kScript});
    const std::string folder = std::filesystem::path(kNccl).parent_path();
    Environment environment = {{"LD_LIBRARY_PATH", folder}, {"PYTHONDONTWRITEBYTECODE", "1"}};
    for (const auto& [name, value] : extra) environment[name] = value;
    const Outcome plain = run(arguments, environment);
    environment["LD_PRELOAD"] = kShim;
    environment["LOCKSTEP_DIR"] = folder_.path() + "/traces";
    const Outcome traced = run(arguments, environment);
    EXPECT_TRUE(plain.exited_with(0)) << plain.err;
    EXPECT_TRUE(traced.exited_with(0)) << traced.err;
    EXPECT_EQ(traced.out, plain.out);
    EXPECT_EQ(traced.err, plain.err);
    return traced;
  }
  TraceFile only_trace() const {
    std::vector<std::string> found;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/traces", none)) found.push_back(entry.path());
    EXPECT_EQ(found.size(), 1u);
    if (found.empty()) return {};
    Result<TraceFile> file = trace::read_trace(found[0]);
    EXPECT_TRUE(file) << file.error();
    return file ? *file : TraceFile{};
  }
  std::string copy(const std::string& name) {
    const std::string to = folder_.path() + "/" + name;
    std::filesystem::copy_file(std::filesystem::canonical(kNccl), to);
    return to;
  }
  static size_t count(const TraceFile& file, abi::Fn fn, uint64_t elements) {
    return static_cast<size_t>(std::count_if(file.calls.begin(), file.calls.end(), [&](const Call& call) {
      return call.fn == static_cast<uint16_t>(fn) && call.count == elements;
    }));
  }

  TempFolder folder_;
};

void expect_first_library(const TraceFile& file) {
  ASSERT_FALSE(file.comms.empty());
  EXPECT_EQ(file.comms[0].rank, 0);
  EXPECT_EQ(file.comms[0].nranks, 2);
  EXPECT_EQ(file.comms[0].coll_called, 2u);
  EXPECT_EQ(file.header.nccl_version, 22809u);
  EXPECT_STRNE(file.header.nccl_path, "");
}

TEST_F(Doors, CtypesByName) {
  python({"use", "libnccl.so.2"});
  const TraceFile file = only_trace();
  expect_first_library(file);
  EXPECT_EQ(count(file, abi::Fn::AllReduce, 100), 1u);
  EXPECT_EQ(count(file, abi::Fn::Bcast, 200), 1u);
  EXPECT_EQ(count(file, abi::Fn::Broadcast, 200), 0u) << "NCCL's own nested call was counted";
  EXPECT_EQ(file.calls.back().result, 4);
  EXPECT_FALSE(file.stack(file.calls.back().stack).empty());
}

TEST_F(Doors, CtypesByPath) {
  python({"use", copy("mine.so")});
  expect_first_library(only_trace());
}

TEST_F(Doors, SeveralCopiesInOneProcess) {
  const Outcome outcome = python({"use", copy("first.so"), copy("second.so"), copy("third.so")});
  // Each copy counted its own calls: n all-reduces, a broadcast, and one that fails.
  EXPECT_NE(outcome.out.find("counted 3\ncounted 4\ncounted 5\n"), std::string::npos) << outcome.out;
  const TraceFile file = only_trace();
  ASSERT_EQ(file.comms.size(), 3u);
  for (size_t i = 0; i < 3; i++) {
    EXPECT_EQ(count(file, abi::Fn::AllReduce, 100 + i), i + 1);
    EXPECT_EQ(count(file, abi::Fn::Bcast, 200 + i), 1u);
    EXPECT_EQ(file.comms[i].coll_called, i + 2);
    EXPECT_EQ(file.comms[i].nranks, 2);
  }
  EXPECT_EQ(std::count_if(file.calls.begin(), file.calls.end(),
                          [](const Call& call) { return call.fn == static_cast<uint16_t>(abi::Fn::Broadcast); }),
            0);
}

TEST_F(Doors, MoreCopiesThanWeCanTellApartStillWork) {
  const Outcome outcome = python({"use", copy("a.so"), copy("b.so"), copy("c.so"), copy("d.so"), copy("e.so"), copy("f.so")});
  EXPECT_NE(outcome.out.find("counted 8\n"), std::string::npos) << outcome.out;
}

TEST_F(Doors, AnExtensionInAPrivateScope) {
  EXPECT_EQ(python({"extension", kPlugin}).out, "0\n");
  EXPECT_EQ(only_trace().calls.back().count, 42u);
}

TEST_F(Doors, WhatIsNotThereIsNotThere) {
  EXPECT_EQ(python({"absent", kNccl, "ncclOfTomorrow"}).out,
            "absent\nncclAllReduce False\ncudaMemcpy False\ncuStreamSynchronize False\ndlsym True\n");
  // One that we know, of a libnccl that is too old for it.
  EXPECT_EQ(python({"absent", kNccl, "ncclCommShrink"}).out.substr(0, 7), "absent\n");
}

// The module's marks; its answer to "are you active" is all that may differ.
TEST_F(Doors, MarksFromPython) {
  const std::string folder = std::filesystem::path(kNccl).parent_path();
  const std::vector<std::string> arguments = {kPython, kScript, "marks", LOCKSTEP_SOURCE "/interpose/python", kNccl};
  const Outcome plain = run(arguments, {{"LD_LIBRARY_PATH", folder}, {"PYTHONDONTWRITEBYTECODE", "1"}});
  const Outcome traced = run(arguments, {{"LD_LIBRARY_PATH", folder},
                                         {"PYTHONDONTWRITEBYTECODE", "1"},
                                         {"LD_PRELOAD", kShim},
                                         {"LOCKSTEP_DIR", folder_.path() + "/traces"}});
  EXPECT_EQ(plain.out, "False\n") << plain.err;
  EXPECT_EQ(traced.out, "True\n") << traced.err;
  const TraceFile file = only_trace();
  std::vector<std::string> marks;
  for (const trace::MarkEvent& mark : file.marks)
    marks.push_back(std::to_string(mark.kind) + " " + (mark.text.empty() ? std::to_string(mark.value) : mark.text));
  EXPECT_EQ(marks, (std::vector<std::string>{"1 3", "3 shard0:7", "2 forward", "2 attention", "2 forward", "2 0", "4 halfway",
                                             "5 dp", "2 data", "2 0", "3 batch10", "2 data", "2 0", "3 batch11", "2 data",
                                             "2 0"}));
  ASSERT_EQ(file.comms.size(), 1u);
  EXPECT_EQ(file.comms[0].name, "dp");
}

TEST_F(Doors, SwitchedOffTheLibrarysOwnFunctionsAreGiven) {
  python({"use", "libnccl.so.2"}, {{"LOCKSTEP", "0"}});
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/traces"));
}

// RTLD_NEXT and RTLD_DEFAULT mean "as seen from the caller", and the caller must stay the caller.
TEST(Dlsym, SeesWithTheCallersEyes) {
  TempFolder folder;
  const Outcome plain = run({kLoner, "eyes", kPlugin}, {});
  const Outcome traced = run({kLoner, "eyes", kPlugin}, {{"LD_PRELOAD", kShim}, {"LOCKSTEP_DIR", folder.path()}});
  EXPECT_TRUE(plain.exited_with(0) && traced.exited_with(0)) << plain.err << traced.err;
  EXPECT_EQ(plain.out, "1 1 1 1\n");
  EXPECT_EQ(traced.out, plain.out);
}

}  // namespace
}  // namespace lockstep
