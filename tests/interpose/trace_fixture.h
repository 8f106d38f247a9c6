// SPDX-License-Identifier: MIT
//
// Traces made by the writer alone, for tests: a temporary folder, an open trace in it, and short ways to add records.

#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "interpose/trace/reader.h"
#include "interpose/trace/writer.h"

namespace lockstep::trace {

class TempFolder {
 public:
  TempFolder() {
    char name[] = "/tmp/lockstep-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::vector<std::string> traces() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      if (entry.path().extension() == kFileSuffix) out.push_back(entry.path());
    return out;
  }
  // Of a folder that must hold one, and a sound one.
  TraceFile only_trace() const {
    const std::vector<std::string> found = traces();
    EXPECT_EQ(found.size(), 1u);
    if (found.empty()) return {};
    Result<TraceFile> file = read_trace(found[0]);
    EXPECT_TRUE(file) << file.error();
    if (!file) return {};
    for (const std::string& problem : file->problems) ADD_FAILURE() << problem;
    return *file;
  }

 private:
  std::string path_;
};

inline int64_t clock_ns(clockid_t which) {
  struct timespec now;
  clock_gettime(which, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}
inline ClockPair clocks_now() {
  const int64_t mono = clock_ns(CLOCK_MONOTONIC);
  return {static_cast<uint64_t>(mono), mono, clock_ns(CLOCK_REALTIME)};
}

inline FileHeader test_header() {
  FileHeader header = {};
  header.pid = getpid();
  header.pid_start_ticks = 12345;
  strcpy(header.host, "testhost");
  header.env_rank = 3;
  header.clock_source = ClockSource::monotonic_ns;
  return header;
}

// An open trace in a folder of its own.
class TraceFixture : public testing::Test {
 protected:
  void open(uint64_t ring_bytes = kSegmentBytes) {
    const Failure failure = create(trace_, folder_.path().c_str(), test_header(), clocks_now(), clocks_now, ring_bytes);
    ASSERT_EQ(failure.what, nullptr) << strerror(failure.error);
  }
  void TearDown() override { unmap(trace_); }

  uint64_t begin(uint64_t count, StackRef stack = 0, uint32_t group = 0, uint8_t depth = 0,
                 abi::Fn fn = abi::Fn::AllReduce) {
    BeginFields f = {};
    f.stamp = static_cast<uint64_t>(clock_ns(CLOCK_MONOTONIC));
    f.fn = static_cast<uint16_t>(fn);
    f.tid = 77;
    f.comm = 1;
    f.peer = -1;
    f.count = count;
    f.seq = count;
    f.sendbuff = 0x1000 + count;
    f.recvbuff = 0x2000 + count;
    f.stream = 0x3000;
    f.native_stack = stack;
    f.step = 9;
    f.redop = 2;
    f.dtype = 7;
    f.flags = group ? kInGroup : 0;
    f.group = group;
    f.group_depth = depth;
    f.thread_slot = 5;
    f.mark_bits = kHasStep;
    uint64_t sequence;
    Record* record = reserve(trace_, cursor(), sequence);
    write_begin(record, sequence, f);
    return sequence;
  }
  void end(uint64_t begin_sequence, int32_t result = 0, abi::Fn fn = abi::Fn::AllReduce, uint32_t comm = 1) {
    uint64_t sequence;
    Record* record = reserve(trace_, cursor(), sequence);
    write_end(record, sequence, static_cast<uint64_t>(clock_ns(CLOCK_MONOTONIC)), static_cast<uint16_t>(fn), 77,
              begin_sequence, result, comm);
  }
  void mark(MarkKind kind, uint64_t value, const char* text) {
    uint64_t sequence;
    Record* record = reserve(trace_, cursor(), sequence);
    write_mark(record, sequence, static_cast<uint64_t>(clock_ns(CLOCK_MONOTONIC)), static_cast<uint16_t>(kind), 77, value,
               5, text, text ? strlen(text) : 0);
  }
  StackRef stack(const std::vector<uint64_t>& pcs) {
    ArenaHeader* header = arena_reserve(trace_, ArenaKind::stack, offsetof(StackBody, pc) + pcs.size() * 8);
    if (!header) return 0;
    auto* body = static_cast<StackBody*>(arena_body(header));
    body->hash = 1;
    body->depth = static_cast<uint32_t>(pcs.size());
    body->flags = 0;
    std::memcpy(body->pc, pcs.data(), pcs.size() * 8);
    arena_commit(header);
    return arena_ref(trace_, header);
  }
  TraceFile read() const {
    Result<TraceFile> file = read_trace(trace_.path);
    EXPECT_TRUE(file) << file.error();
    return file ? *file : TraceFile{};
  }

  TempFolder folder_;
  Trace trace_ = {};

  // The calling thread's, in this test.
  Cursor& cursor() const {
    thread_local Cursor mine;
    thread_local unsigned of = 0;
    if (of != number_) mine = {};
    of = number_;
    return mine;
  }
  static inline unsigned tests_ = 0;
  const unsigned number_ = ++tests_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}
inline void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace lockstep::trace
