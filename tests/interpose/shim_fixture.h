// SPDX-License-Identifier: MIT
//
// The built liblockstep.so, preloaded into a client of a libnccl that does nothing.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "interpose/abi/nccl.h"
#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {

inline const std::string kClient = SHIM_CLIENT, kClientWithFramePointers = SHIM_CLIENT_FP, kHarm = HARM_CLIENT,
                         kShim = SHIM_LIBRARY;

class Shim : public testing::Test {
 protected:
  Outcome client(std::vector<std::string> arguments, Environment extra = {}, double seconds = 30) {
    arguments.insert(arguments.begin(), kClient);
    return run(arguments, environment(extra), seconds);
  }
  Outcome harm_client(std::vector<std::string> arguments, Environment extra = {}, double seconds = 30) {
    arguments.insert(arguments.begin(), kHarm);
    return run(arguments, environment(extra), seconds);
  }
  Environment environment(const Environment& extra = {}) const {
    Environment out = {{"LD_PRELOAD", kShim}, {"LOCKSTEP_DIR", folder_.path()}, {"RANK", "1"}, {"WORLD_SIZE", "4"}};
    for (const auto& [name, value] : extra) out[name] = value;
    return out;
  }
  trace::TraceFile only_trace() const { return folder_.only_trace(); }
  static std::vector<trace::Call> of(const trace::TraceFile& file, abi::Fn fn) {
    std::vector<trace::Call> out;
    for (const trace::Call& call : file.calls)
      if (call.fn == static_cast<uint16_t>(fn)) out.push_back(call);
    return out;
  }
  // Those of the main thread: a sanitizer may have threads of its own.
  static std::vector<trace::Snapshot> snapshots(const trace::TraceFile& file) {
    std::vector<trace::Snapshot> out;
    for (const trace::Snapshot& snapshot : file.snapshots)
      if (snapshot.tid == static_cast<uint32_t>(file.header.pid)) out.push_back(snapshot);
    return out;
  }

  trace::TempFolder folder_;
};

}  // namespace lockstep
