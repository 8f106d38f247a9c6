// SPDX-License-Identifier: MIT
//
// Files that are cut, flipped, foreign or newer: the reader never crashes and never hangs, and what it says is a sentence.

#include <chrono>
#include <random>

#include "tests/interpose/trace_fixture.h"

namespace lockstep::trace {
namespace {

class TraceDamage : public TraceFixture {
 protected:
  // A small file with one of everything.
  std::string whole() {
    open();
    const StackRef ref = stack({0x10, 0x20, 0x30});
    for (uint64_t i = 0; i < 5; i++) end(begin(i, ref));
    begin(99, ref);
    mark(kMarkPhase, 0, "forward");
    ArenaHeader* text = arena_reserve(trace_, ArenaKind::text, 4);
    memcpy(arena_body(text), "note", 4);
    arena_commit(text);
    trace_.threads[0].tid = 7;
    trace_.comms[0].serial = 1;
    return slurp(trace_.path);
  }
  Result<TraceFile> read_bytes(const std::string& bytes) const {
    const std::string path = folder_.path() + "/damaged.lstrace";
    spill(path, bytes);
    return read_trace(path);
  }
  static bool is_sentence(const std::string& text) {
    return text.size() > 20 && text.find(".lstrace: ") != std::string::npos && text.find('\n') == std::string::npos;
  }
};

// Writes only the start of the file, with the rest a hole, so that thousands of cuts cost little.
TEST_F(TraceDamage, AFileCutAnywhereGivesUpWhatIsBeforeTheCut) {
  const std::string bytes = whole();
  std::vector<size_t> cuts;
  for (size_t cut = 0; cut < sizeof(FileHeader) + 64; cut += 7) cuts.push_back(cut);
  for (const Area& area : trace_.header->areas)
    for (int near = -130; area.size && near <= 1400; near += 17)
      cuts.push_back(static_cast<size_t>(static_cast<int64_t>(area.offset) + near));
  const std::string path = folder_.path() + "/cut.lstrace";
  spill(path, bytes);
  std::sort(cuts.rbegin(), cuts.rend());
  for (size_t cut : cuts) {
    if (cut >= bytes.size()) continue;
    std::filesystem::resize_file(path, cut);
    const Result<TraceFile> file = read_trace(path);
    if (cut < sizeof(FileHeader)) {
      ASSERT_FALSE(file) << cut;
      EXPECT_TRUE(is_sentence(file.error())) << file.error();
      continue;
    }
    ASSERT_TRUE(file) << cut << ": " << file.error();
    const uint64_t ring = trace_.header->areas[kRingArea].offset;
    EXPECT_TRUE(cut >= ring || !file->problems.empty()) << cut;
    const uint64_t records = cut > ring ? (cut - ring) / sizeof(Record) : 0;
    EXPECT_EQ(file->calls.size() + file->marks.size(), records >= 12 ? 7 : std::min<uint64_t>((records + 1) / 2, 6)) << cut;
  }
}

TEST_F(TraceDamage, ATornRecordNeverReadsAsAnother) {
  whole();
  end_in_place(&trace_.ring[0], 0, static_cast<uint64_t>(clock_ns(CLOCK_MONOTONIC)), 3, 1);
  const TraceFile intact = read();
  auto* first = reinterpret_cast<uint8_t*>(trace_.ring);
  for (size_t at = 0; at < offsetof(Record, reserved); at++)
    for (int bit = 0; bit < 8; bit++) {
      first[at] = static_cast<uint8_t>(first[at] ^ (1 << bit));
      EXPECT_EQ(read().calls.size(), intact.calls.size() - 1) << at << " bit " << bit;
      first[at] = static_cast<uint8_t>(first[at] ^ (1 << bit));
    }
  EXPECT_EQ(read().calls.size(), intact.calls.size());
}

TEST_F(TraceDamage, RandomDamageNeverCrashesTheReader) {
  const std::string bytes = whole();
  std::mt19937_64 random(20240607);
  const size_t ring = trace_.header->areas[kRingArea].offset;
  const std::string path = folder_.path() + "/random.lstrace";
  spill(path, bytes.substr(0, ring + 16 * sizeof(Record)));
  // Where damage means something: not in the holes.
  const std::pair<size_t, size_t> zones[] = {{0, sizeof(FileHeader)},
                                             {trace_.header->areas[kStatusArea].offset, 400},
                                             {trace_.header->areas[kThreadArea].offset, 256},
                                             {trace_.header->areas[kCommArea].offset, 1024},
                                             {trace_.header->areas[kArenaArea].offset, 200},
                                             {ring, 16 * sizeof(Record)}};
  const auto started = std::chrono::steady_clock::now();
  for (int round = 0; round < 3000 && std::chrono::steady_clock::now() - started < std::chrono::seconds(20); round++) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    std::vector<std::pair<size_t, char>> undo;
    for (int i = 0; i < 1 + round % 6; i++) {
      const auto& [start, size] = zones[random() % std::size(zones)];
      const size_t at = start + random() % size;
      char old = 0;
      file.seekg(static_cast<std::streamoff>(at));
      file.get(old);
      undo.push_back({at, old});
      constexpr char kNasty[] = {0, 1, 127, -128, -1};
      file.seekp(static_cast<std::streamoff>(at));
      file.put(round % 2 ? kNasty[random() % 5] : static_cast<char>(random()));
    }
    file.close();
    const Result<TraceFile> result = read_trace(path);
    if (result) {
      for (const Call& call : result->calls) (void)result->stack(call.stack);
      (void)look_alive(*result);
    } else {
      EXPECT_TRUE(is_sentence(result.error())) << result.error();
    }
    std::fstream restore(path, std::ios::in | std::ios::out | std::ios::binary);
    for (auto at = undo.rbegin(); at != undo.rend(); ++at) {
      restore.seekp(static_cast<std::streamoff>(at->first));
      restore.put(at->second);
    }
  }
  const Result<TraceFile> again = read_trace(path);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->calls.size(), 6u);
}

TEST_F(TraceDamage, ANewerFormatIsRefusedInOneSentence) {
  std::string bytes = whole().substr(0, 70000);
  bytes[offsetof(FileHeader, version_major)] = 3;
  const Result<TraceFile> file = read_bytes(bytes);
  ASSERT_FALSE(file);
  EXPECT_TRUE(is_sentence(file.error()));
  EXPECT_NE(file.error().find("trace format 3." + std::to_string(kVersionMinor)), std::string::npos) << file.error();
}

TEST_F(TraceDamage, ANewerMinorVersionIsReadAndItsUnknownKindsSkipped) {
  open();
  trace_.header->version_minor = 9;
  begin(1);
  uint64_t sequence;
  Record* record = reserve(trace_, cursor(), sequence);
  const uint64_t word[kRecordWords] = {1, 999};
  commit(record, word, sequence);
  ArenaHeader* unknown = arena_reserve(trace_, static_cast<ArenaKind>(77), 16);
  arena_commit(unknown);
  begin(2);
  const TraceFile file = read();
  EXPECT_EQ(file.calls.size(), 2u);
  EXPECT_EQ(file.torn, 0u);
  EXPECT_TRUE(file.problems.empty());
}

TEST_F(TraceDamage, ForeignEmptyAndMissingFilesAreNamed) {
  EXPECT_NE(read_bytes("").error().find("is empty"), std::string::npos);
  EXPECT_NE(read_bytes("#!/bin/sh\necho hello\n").error().find("not a Lockstep trace"), std::string::npos);
  EXPECT_NE(read_trace(folder_.path() + "/none.lstrace").error().find("No such file"), std::string::npos);
  EXPECT_NE(read_trace(folder_.path()).error().find("not a regular file"), std::string::npos);
  std::string swapped = whole().substr(0, 8192);
  std::reverse(swapped.begin() + offsetof(FileHeader, byte_order), swapped.begin() + offsetof(FileHeader, byte_order) + 8);
  EXPECT_NE(read_bytes(swapped).error().find("other byte order"), std::string::npos);
}

// Numbers that claim more than there is.
TEST_F(TraceDamage, HostileSizesCostASentence) {
  open();
  begin(1);
  trace_.status->arena_next.store(UINT64_MAX);
  trace_.status->ring_next.store(UINT64_MAX / 2);
  trace_.status->ring_slots.store(0);
  trace_.status->process_marks.store(UINT32_MAX);
  trace_.header->areas[kRingArea].size = UINT64_MAX;
  trace_.header->areas[kThreadArea].record_size = 1u << 31;
  const Result<TraceFile> file = read_trace(trace_.path);
  ASSERT_TRUE(file);
  EXPECT_LE(file->calls.size(), 1u);
}

}  // namespace
}  // namespace lockstep::trace
