// SPDX-License-Identifier: MIT
//
// The worked example of docs/trace-format.md, made by the writer: the page shows these very bytes, or the test fails.
// With LOCKSTEP_SHOW_EXAMPLE=1 it prints them, to be pasted into the page and reviewed there.

#include <cctype>

#include "interpose/shim/settings.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep::trace {
namespace {

// As `hexdump -C` writes it.
std::string dump(const std::string& bytes, size_t at, size_t size) {
  std::string out;
  for (size_t line = at; line < at + size; line += 16) {
    char text[96];
    int n = std::snprintf(text, sizeof text, "%08zx ", line);
    std::string seen;
    for (size_t i = line; i < line + 16; i++) {
      const auto byte = static_cast<unsigned char>(bytes[i]);
      n += std::snprintf(text + n, sizeof text - static_cast<size_t>(n), "%s%02x ", i % 8 == 0 ? " " : "", byte);
      seen += std::isprint(byte) ? static_cast<char>(byte) : '.';
    }
    out += std::string(text) + " |" + seen + "|\n";
  }
  return out;
}

ClockPair fixed_clocks() { return {2000000, 2000000, 1700000000002000000}; }

TEST(TraceExample, ThePageShowsWhatTheWriterWrites) {
  TempFolder folder;
  FileHeader header = {};
  header.pid = 4711;
  header.pid_start_ticks = 123456;
  strcpy(header.host, "node1");
  Trace trace = {};
  ASSERT_EQ(create(trace, folder.path().c_str(), header, {1000000, 1000000, 1700000000001000000}, fixed_clocks,
                   kSegmentBytes).what, nullptr);
  ArenaHeader* stack = arena_reserve(trace, ArenaKind::stack, sizeof(StackBody) + 16);
  auto* body = static_cast<StackBody*>(arena_body(stack));
  body->hash = 0x1122334455667788;
  body->depth = 2;
  const uint64_t pcs[] = {0x401156, 0x401190};
  memcpy(reinterpret_cast<char*>(body) + sizeof(StackBody), pcs, sizeof pcs);
  arena_commit(stack);

  BeginFields f = {};
  f.stamp = 3000000;
  f.fn = static_cast<uint16_t>(abi::Fn::AllReduce);
  f.tid = 4711;
  f.comm = 1;
  f.peer = -1;
  f.count = 4096;
  f.seq = 17;
  f.sendbuff = f.recvbuff = 0x7f0000001000;
  f.native_stack = arena_ref(trace, stack);
  f.step = 5;
  f.dtype = 7;
  f.flags = kInPlace;
  f.mark_bits = kHasStep;
  uint64_t begin, end;
  Cursor cursor = {};
  Record* record = reserve(trace, cursor, begin);
  write_begin(record, begin, f);
  record = reserve(trace, cursor, end);
  write_end(record, end, 3004000, f.fn, 4711, begin, 0, 1);

  const std::string name = std::filesystem::path(trace.path).filename();
  EXPECT_EQ(name, "node1.4711.123456.lstrace");
  const std::string bytes = slurp(trace.path);
  const Area* areas = trace.header->areas;
  const std::string blocks[] = {dump(bytes, 0, 64), dump(bytes, areas[kArenaArea].offset, 48),
                                dump(bytes, areas[kRingArea].offset, 256)};
  unmap(trace);

  const std::string page = slurp(LOCKSTEP_SOURCE "/docs/trace-format.md");
  for (const std::string& block : blocks) {
    if (getenv("LOCKSTEP_SHOW_EXAMPLE")) std::printf("%s\n", block.c_str());
    EXPECT_NE(page.find(block), std::string::npos) << "docs/trace-format.md does not show\n" << block;
  }
}

TEST(TraceExample, ThePageHasEveryNumberOfTheFormat) {
  const std::string page = slurp(LOCKSTEP_SOURCE "/docs/trace-format.md");
  for (const char* text : {"FileHeader", "Status", "ThreadSlot", "CommSlot", "Record", "ArenaHeader", "StackBody",
                           "ModuleBody", "SnapshotBody", "SymbolBody"})
    EXPECT_NE(page.find(text), std::string::npos) << text;
  EXPECT_NE(page.find("version " + std::to_string(kVersionMajor) + "." + std::to_string(kVersionMinor)), std::string::npos);
}

TEST(ShimPage, HasEverySettingWithItsDefaultAndMeaning) {
  const std::string page = slurp(LOCKSTEP_SOURCE "/docs/shim.md");
  for (const shim::Setting& s : shim::kSettings) {
    const std::string standard = *s.standard ? "`" + std::string(s.standard) + "`" : "";
    const std::string row = "| `" + std::string(s.name) + "` | " + standard + " | " + s.meaning + " |";
    EXPECT_NE(page.find(row), std::string::npos) << "docs/shim.md lacks the row\n" << row;
  }
}

}  // namespace
}  // namespace lockstep::trace
