// SPDX-License-Identifier: MIT
//
// What liblockstep.so is as a file, and how it gets along with the loader: what it needs, what it exports, that it runs no
// code of its own before the job does, that the job's exceptions are still unwound by the job's own unwinder, and that the
// real library is found, or missed, in every scope it may hide in.

#include <gtest/gtest.h>

#include <cstdio>
#include <regex>
#include <set>
#include <sstream>

#include "interpose/abi/functions.h"
#include "interpose/abi/host_functions.h"
#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {
namespace {

using trace::TempFolder;
using trace::TraceFile;

const std::string kShim = SHIM_LIBRARY, kClient = SHIM_CLIENT, kLoner = SHIM_LONER, kPlugin = SHIM_PLUGIN;

std::string tool(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::string out;
  char buffer[4096];
  for (size_t n; pipe && (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  EXPECT_TRUE(pipe && pclose(pipe) == 0) << command << "\n" << out;
  return out;
}

std::vector<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex expression(pattern);
  std::vector<std::string> out;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at) out.push_back((*at)[1]);
  return out;
}

TEST(Library, NeedsTheCLibraryAlone) {
  for (const std::string& needed : matches(tool("readelf -dW " + kShim), "\\(NEEDED\\).*\\[(.*)\\]"))
    EXPECT_TRUE(needed == "libc.so.6" || needed == "libdl.so.2" || needed == "libpthread.so.0" || needed.starts_with("ld-linux"))
        << needed;
}

TEST(Library, WantsNoSymbolNewerThanGlibc228) {
  const std::vector<std::string> versions = matches(tool("readelf -VW " + kShim), "Name: GLIBC_([0-9.]+)");
  EXPECT_FALSE(versions.empty());
  for (const std::string& version : versions) {
    int major = 0, minor = 0;
    std::sscanf(version.c_str(), "%d.%d", &major, &minor);
    EXPECT_LE(major * 1000 + minor, 2028) << "GLIBC_" << version;
  }
}

TEST(Library, ExportsTheHooksAndTheMarkAndNothingElse) {
  std::set<std::string> expected = {"lockstep_mark_v1", "ncclDevCommCreate", "dlsym", "_exit", "_Exit", "quick_exit",
                                    "InitializeInjectionNvtx2", "ncclProfiler_v5", "ncclProfiler_v6"};
  for (const abi::HostFunction& f : abi::kHostFunctions) expected.insert(f.symbol);
  for (const abi::FunctionInfo& f : abi::kFunctions)
    if (f.hooked) expected.insert(std::string("nccl") + f.name);
  std::set<std::string> exported;
  std::istringstream lines(tool("nm -D --defined-only " + kShim));
  for (std::string address, type, name; lines >> address >> type >> name;) exported.insert(name);
  EXPECT_EQ(exported, expected);
}

// One entry is the C runtime's own (frame_dummy).
TEST(Library, HasNoConstructors) {
  const std::vector<std::string> sizes =
      matches(tool("readelf -SW " + kShim), "\\.init_array +INIT_ARRAY +[0-9a-f]+ +[0-9a-f]+ +([0-9a-f]+)");
  ASSERT_EQ(sizes.size(), 1u);
  EXPECT_LE(std::stoul(sizes[0], nullptr, 16), sizeof(void*));
}

TEST(Library, LeavesTheJobsUnwinderAlone) {
  TempFolder folder;
  const Outcome outcome = run({kClient, "exceptions"}, {{"LD_PRELOAD", kShim},
                                                        {"LOCKSTEP_DIR", folder.path()},
                                                        {"LD_DEBUG", "bindings"},
                                                        {"LD_DEBUG_OUTPUT", folder.path() + "/bindings"}});
  EXPECT_TRUE(outcome.exited_with(0));
  unsigned seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename().string().rfind("bindings", 0) != 0) continue;
    std::istringstream lines(trace::slurp(entry.path()));
    for (std::string line; std::getline(lines, line);) {
      if (line.find("symbol `_Unwind_") == std::string::npos) continue;
      const bool from_libunwind = line.find("binding file") < line.find("libunwind") &&
                                  line.find("libunwind") < line.find(" to ");
      if (from_libunwind) continue;
      seen++;
      EXPECT_EQ(line.find("libunwind"), std::string::npos) << line;
      EXPECT_EQ(line.find("liblockstep"), std::string::npos) << line;
    }
  }
  EXPECT_GT(seen, 0u) << "no binding of an unwinder symbol was seen: this test saw nothing";
}

TEST(Library, WithoutLibunwindThereAreCallsButNoStacks) {
  TempFolder folder;
  trace::spill(folder.path() + "/libunwind.so.8", "not a library");
  const Outcome outcome =
      run({kClient, "call", "10"},
          {{"LD_PRELOAD", kShim}, {"LOCKSTEP_DIR", folder.path()}, {"LD_LIBRARY_PATH", folder.path()}});
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.err, "");
  ASSERT_EQ(folder.traces().size(), 1u);
  const Result<TraceFile> file = trace::read_trace(folder.traces()[0]);
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(file->header.stacks_enabled, 0u);
  EXPECT_STRNE(file->header.stacks_note, "");
  EXPECT_EQ(file->calls.back().stack, 0u);
  EXPECT_EQ(file->calls.back().count, 10u);
}

// A program that finds our hook where it expected NCCL's function, with no NCCL in the process.
TEST(Library, WithoutLibncclAHookSaysSoAndFails) {
  TempFolder folder;
  const Outcome outcome = run({kLoner, "none"}, {{"LD_PRELOAD", kShim}, {"LOCKSTEP_DIR", folder.path()}});
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.out, "5\n5\n");  // ncclInvalidUsage, twice
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("no libnccl.so.2"), std::string::npos) << outcome.err;
  EXPECT_TRUE(folder.traces().empty());
}

TEST(Library, WithoutCudaAHostWaitIsNotInitialised) {
  TempFolder folder;
  EXPECT_TRUE(run({kLoner, "no-cuda"}, {{"LD_PRELOAD", ""}}).exited_with(3)) << "there is CUDA in this program";
  const Outcome outcome = run({kLoner, "no-cuda"}, {{"LD_PRELOAD", kShim}, {"LOCKSTEP_DIR", folder.path()}});
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.out, "3\n");
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(folder.traces().empty());
}

// As Python loads an extension that is linked to libnccl: RTLD_NEXT does not find it, the call must get there all the same.
TEST(Library, FindsLibncclInAPrivateScope) {
  TempFolder folder;
  const Environment environment = {{"LD_PRELOAD", kShim}, {"LOCKSTEP_DIR", folder.path()}};
  const Outcome outcome = run({kLoner, kPlugin}, environment);
  EXPECT_TRUE(outcome.exited_with(0)) << outcome.err;
  EXPECT_EQ(outcome.out, "0\n");
  EXPECT_EQ(outcome.err, "");
  ASSERT_EQ(folder.traces().size(), 1u);
  const Result<TraceFile> file = trace::read_trace(folder.traces()[0]);
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(file->calls.back().count, 42u);
  // The plugin was loaded while recording had not begun; the one loaded after it is found by the helper.
  const bool knows_plugin = std::any_of(file->modules.begin(), file->modules.end(),
                                        [](const trace::Module& m) { return m.path == kPlugin; });
  EXPECT_TRUE(knows_plugin);
}

}  // namespace
}  // namespace lockstep
