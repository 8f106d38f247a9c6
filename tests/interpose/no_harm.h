// SPDX-License-Identifier: MIT
//
// Runs a client with and without the shim and compares what the job itself can see: its output and how it ended.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {

class NoHarm : public testing::Test {
 protected:
  const std::string shim_ = SHIM_LIBRARY;

  std::string traces() const { return folder_.path() + "/traces"; }
  // Ends alike and prints alike; gives back the run with the shim. In LD_PRELOAD of `extra` stands what is preloaded
  // then.
  Outcome compare(const std::vector<std::string>& arguments, const Environment& extra = {}, double seconds = 60) {
    Environment environment = extra;
    environment["LOCKSTEP_DIR"] = traces();  // some clients look for it
    environment["LD_PRELOAD"] = "";
    const Outcome plain = run(arguments, environment, seconds);
    std::error_code none;
    std::filesystem::remove_all(traces(), none);
    const auto preload = extra.find("LD_PRELOAD");
    environment["LD_PRELOAD"] = preload == extra.end() ? shim_ : preload->second;
    const Outcome traced = run(arguments, environment, seconds);
    EXPECT_FALSE(plain.timed_out || traced.timed_out);
    EXPECT_EQ(traced.status, plain.status) << traced.err;
    EXPECT_EQ(traced.out, plain.out);
    return traced;
  }
  std::vector<trace::TraceFile> read_all() const {
    std::vector<trace::TraceFile> out;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(traces(), none)) {
      if (entry.path().extension() != trace::kFileSuffix) continue;
      Result<trace::TraceFile> file = trace::read_trace(entry.path());
      EXPECT_TRUE(file) << file.error();
      if (file) out.push_back(*file);
    }
    return out;
  }
  trace::TraceFile only_trace() const {
    std::vector<trace::TraceFile> files = read_all();
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? trace::TraceFile{} : files[0];
  }
  static size_t count(const trace::TraceFile& file, uint64_t elements) {
    return static_cast<size_t>(std::count_if(file.calls.begin(), file.calls.end(),
                                             [&](const trace::Call& call) { return call.count == elements; }));
  }

  trace::TempFolder folder_;
};

}  // namespace lockstep
