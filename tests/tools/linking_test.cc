// SPDX-License-Identifier: MIT
//
// Programs linked in all the ways people link them, through `lockstep run --host`: those that can run do, the others
// are told what to change before anything starts.

#include "tools/run/linking.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/demo/process.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

class Linked : public testing::Test {
 protected:
  Outcome on_host(std::vector<std::string> command) {
    std::vector<std::string> words{LOCKSTEP_CLI, "run", "--host", "--dir", folder_.path("traces"), "--"};
    words.insert(words.end(), command.begin(), command.end());
    return run_program(words, 60s);
  }
  void expect_runs(const std::string& program) {
    const Outcome outcome = on_host({program});
    EXPECT_EQ(0, outcome.status) << outcome.out << outcome.err;
    EXPECT_EQ("sum of 2 ranks is right\n", outcome.out);
  }
  void expect_refused(std::vector<std::string> command, const std::string& hint) {
    const Outcome outcome = on_host(std::move(command));
    EXPECT_EQ(2, outcome.status) << outcome.out << outcome.err;
    EXPECT_EQ("", outcome.out);
    EXPECT_NE(std::string::npos, outcome.err.find(hint)) << outcome.err;
    EXPECT_EQ(1, std::count(outcome.err.begin(), outcome.err.end(), '\n')) << outcome.err;
  }
  TemporaryFolder folder_;
};

TEST_F(Linked, AgainstTheHostRuntimeRuns) { expect_runs(LINKED_PLAIN); }

TEST_F(Linked, WithAnRpathRunsBecauseItIsPreloaded) {
  const auto linking = linking_of(LINKED_RPATH);
  ASSERT_TRUE(linking);
  EXPECT_TRUE(linking->rpath);
  EXPECT_TRUE(linking->needs("libnccl.so.2"));
  // Where the RPATH leads.
  const Outcome alone = run_program({LINKED_RPATH}, 60s);
  EXPECT_EQ("cudaGetDeviceCount failed: 77\n", alone.out);
  expect_runs(LINKED_RPATH);
}

TEST_F(Linked, WithALauncherInFrontIsSeenToo) {
  const Outcome outcome = on_host({"env", LINKED_RPATH});
  EXPECT_EQ("sum of 2 ranks is right\n", outcome.out) << outcome.err;
  expect_refused({"env", LINKED_MARKED}, "-cudart shared");
}

TEST_F(Linked, WithTheRuntimeInsideIsToldToRelink) {
  EXPECT_TRUE(linking_of(LINKED_MARKED)->static_cudart);
  expect_refused({LINKED_MARKED}, "-cudart shared");
}

TEST_F(Linked, ScriptsAndDamagedFilesAreLetPass) {
  const auto with = [&](const std::string& bytes) {
    const std::string path = folder_.path("program");
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return linking_of(path);
  };
  EXPECT_FALSE(with(""));
  EXPECT_FALSE(with("#!/bin/sh\nexit 0\n"));
  EXPECT_FALSE(linking_of("/no/such/file"));
  EXPECT_FALSE(linking_of("/"));
  std::ifstream file(LINKED_RPATH, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  ASSERT_GT(whole.size(), 2000u);
  for (size_t length = 0; length < 1500; length += 7) with(whole.substr(0, length));
  for (size_t at = 0; at < 1200; at += 3) {  // any byte of the headers may be wrong
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
    with(damaged);
  }
}

TEST(Obstacles, AreSaidInOneSentence) {
  Linking linking;
  linking.needed = {"libc.so.6", "libcudart.so.13", "libnccl.so.2"};
  EXPECT_EQ("", host_obstacle("job", linking));
  linking.needed[1] = "libcudart.so.12";
  EXPECT_NE(std::string::npos, host_obstacle("job", linking).find("CUDA 13"));
  linking.needed[1] = "/opt/cuda/lib/libcudart.so.13";
  EXPECT_TRUE(linking.needs("libcudart.so.13"));
  EXPECT_NE(std::string::npos, host_obstacle("job", linking).find("/opt/cuda/lib/libcudart.so.13"));
  linking.static_nccl = true;
  EXPECT_NE(std::string::npos, host_obstacle("job", linking).find("-lnccl"));
}

constexpr char kNoToolkit[] = "no CUDA toolkit with NCCL on this machine to link against";

TEST_F(Linked, AgainstTheRealLibrariesRunsUnchanged) {
  if (std::string(LINKED_REAL).empty()) GTEST_SKIP() << kNoToolkit;
  const auto linking = linking_of(LINKED_REAL);
  ASSERT_TRUE(linking);
  EXPECT_TRUE(linking->needs("libcudart.so.13"));
  EXPECT_TRUE(linking->needs("libnccl.so.2"));
  expect_runs(LINKED_REAL);
}

TEST_F(Linked, ByNvccRunsUpToAKernel) {
  if (std::string(LINKED_NVCC).empty()) GTEST_SKIP() << "no nvcc on this machine";
  Outcome outcome = on_host({LINKED_NVCC});
  EXPECT_EQ("cudaSuccess, cudaSuccess\n", outcome.out) << outcome.err;
  outcome = on_host({LINKED_NVCC, "launch"});
  EXPECT_EQ("cudaErrorNotSupported, cudaErrorNotSupported\n", outcome.out);
  EXPECT_NE(std::string::npos, outcome.err.find("no device to run kernels on")) << outcome.err;
}

TEST_F(Linked, ByNvccsDefaultIsToldToRelink) {
  if (std::string(LINKED_NVCC_STATIC).empty()) GTEST_SKIP() << "no nvcc on this machine";
  expect_refused({LINKED_NVCC_STATIC}, "-cudart shared");
}

}  // namespace
}  // namespace lockstep::test
