// SPDX-License-Identifier: MIT
//
// Frames of this very program: functions inlined into others, and debug information that lies elsewhere.

#include "tools/explain/symbols.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "tests/demo/process.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

__attribute__((always_inline)) inline uint64_t here() {
  uint64_t pc = 0;
#if defined(__x86_64__)
  asm volatile("lea -1(%%rip), %0" : "=r"(pc));  // within itself
#elif defined(__aarch64__)
  asm volatile("adr %0, ." : "=r"(pc));
#endif
  return pc;
}
__attribute__((always_inline)) inline uint64_t next_batch() { return here(); }
__attribute__((noinline)) uint64_t train() {
  const uint64_t pc = next_batch();
  asm volatile("" : : "r"(pc));
  return pc;
}

// This program as a module: where it is, and its build id.
int describe(struct dl_phdr_info* info, size_t, void* to) {
  auto* module = static_cast<trace::Module*>(to);
  module->bias = info->dlpi_addr;
  module->start = UINT64_MAX;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& part = info->dlpi_phdr[i];
    const uint64_t at = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD) {
      module->start = std::min(module->start, at);
      module->end = std::max(module->end, at + part.p_memsz);
    }
    for (uint64_t note = at; part.p_type == PT_NOTE && note + sizeof(ElfW(Nhdr)) < at + part.p_memsz;) {
      const auto* head = reinterpret_cast<const ElfW(Nhdr)*>(note);
      const auto* name = reinterpret_cast<const char*>(head + 1);
      const auto* bytes = reinterpret_cast<const unsigned char*>(name + (head->n_namesz + 3) / 4 * 4);
      if (head->n_type == NT_GNU_BUILD_ID && head->n_namesz == 4 && std::strcmp(name, "GNU") == 0)
        for (uint32_t k = 0; k < head->n_descsz; k++) {
          constexpr const char* kDigits = "0123456789abcdef";
          module->build_id += kDigits[bytes[k] >> 4];
          module->build_id += kDigits[bytes[k] & 15];
        }
      note = reinterpret_cast<uint64_t>(bytes + (head->n_descsz + 3) / 4 * 4);
    }
  }
  return 1;
}

trace::TraceFile trace_of(const std::string& program) {
  trace::TraceFile file;
  file.modules.emplace_back();
  dl_iterate_phdr(describe, &file.modules.back());
  file.modules.back().path = program;
  return file;
}

std::string own_path() { return fs::read_symlink("/proc/self/exe").string(); }

std::vector<std::string> functions(const std::vector<Frame>& frames) {
  std::vector<std::string> names;
  for (const Frame& frame : frames) {
    const std::string text = frame_text(frame);
    names.push_back(text.substr(0, text.find(' ')));
    names.back() = names.back().substr(names.back().rfind(':') + 1);
  }
  return names;
}

const std::vector<std::string> kInlined = {"here", "next_batch", "train"};

TEST(Symbols, InlinedFunctionsAreFramesOfTheirOwn) {
  const trace::TraceFile file = trace_of(own_path());
  Symbolizer symbolizer;
  const std::vector<Frame> frames = symbolizer.name_all(file, {train()}, true);
  ASSERT_EQ(functions(frames), kInlined);
  for (const Frame& frame : frames) EXPECT_EQ(fs::path(frame.file).filename(), "symbols_test.cc");
  EXPECT_LT(frames[0].line, frames[1].line);  // each line is that of the place within the function
  EXPECT_LT(frames[1].line, frames[2].line);
  EXPECT_EQ(symbolizer.name(file, train(), true).function, frames[2].function);  // what a trace would say
}

TEST(Symbols, InlinedPiecesOfTheStandardLibraryAreNotTheUsers) {
  std::vector<Frame> frames(3);
  for (Frame& frame : frames) frame.module = "train";
  frames[0].function =
      "void std::this_thread::sleep_for<long, std::ratio<1l, 1l> >(std::chrono::duration<long> const&)";
  frames[1].function = "operator()";
  frames[1].file = "/usr/include/c++/12/bits/unique_ptr.h";
  frames[2].function = "std::vector<int> app::next_batch<int>(int)";
  EXPECT_EQ(users_frame(frames), &frames[2]);
}

TEST(Symbols, NorIsWhatASanitizerPutsInFrontOfTheCLibrary) {
  std::vector<Frame> frames(3);
  frames[0].module = "libasan.so.8";
  frames[1].module = frames[2].module = "train";
  frames[1].function = "___interceptor_poll";
  frames[2].function = "app::wait";
  EXPECT_EQ(users_frame(frames), &frames[2]);
}

TEST(Symbols, WhatTheTraceSaysIsKeptWithoutAFile) {
  trace::TraceFile file = trace_of("/nowhere/train");
  trace::Symbol symbol;
  symbol.pc = train();
  symbol.function = "train()";
  file.symbols.push_back(symbol);
  Symbolizer symbolizer;
  EXPECT_EQ(functions(symbolizer.name_all(file, {symbol.pc}, true)), std::vector<std::string>{"train"});
}

TEST(Symbols, AnotherBuildIsNotAsked) {
  trace::TraceFile file = trace_of(own_path());
  file.modules[0].build_id = "0123456789abcdef";
  Symbolizer symbolizer;
  EXPECT_EQ(symbolizer.name_all(file, {train()}, true)[0].function, "");
}

#ifdef OBJCOPY
TEST(Symbols, DebugInformationInAFolderOfTheUsers) {
  const trace::TempFolder folder;
  const std::string stripped = folder.path() + "/bin/train";
  fs::create_directories(folder.path() + "/bin");
  ASSERT_EQ(run_program({OBJCOPY, "--strip-all", own_path(), stripped}, std::chrono::seconds(60)).status, 0);
  const trace::TraceFile file = trace_of(stripped);
  const std::string id = file.modules[0].build_id;
  ASSERT_GT(id.size(), 8u);
  EXPECT_EQ(functions(Symbolizer().name_all(file, {train()}, true)).size(), 1u);
  for (const std::string& place : {"/debug/.build-id/" + id.substr(0, 2) + "/" + id.substr(2) + ".debug",
                                   std::string("/debug/train.debug"), "/debug" + stripped}) {
    const std::string debug = folder.path() + place;
    fs::create_directories(fs::path(debug).parent_path());
    ASSERT_EQ(run_program({OBJCOPY, "--only-keep-debug", own_path(), debug}, std::chrono::seconds(60)).status, 0);
    Symbolizer symbolizer(folder.path() + "/debug");
    EXPECT_EQ(functions(symbolizer.name_all(file, {train()}, true)), kInlined) << place;
    trace::TraceFile copied = file;  // the program itself is not on this machine
    copied.modules[0].path = "/nowhere/train";
    EXPECT_EQ(functions(symbolizer.name_all(copied, {train()}, true)).size(),
              place.find(stripped) == std::string::npos ? 3u : 1u);
    fs::remove_all(folder.path() + "/debug");
  }
}
#endif

}  // namespace
}  // namespace lockstep::test
