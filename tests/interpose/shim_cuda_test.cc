// SPDX-License-Identifier: MIT
//
// Host waits, graph launches, and the states of operations on streams, with a CUDA whose work is done when the client says.

#include <gtest/gtest.h>

#include <algorithm>

#include "interpose/abi/host_functions.h"
#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {
namespace {

using trace::HostCall;
using trace::TempFolder;
using trace::TraceFile;

const std::string kClient = SHIM_CLIENT, kPlain = SHIM_PLAIN_CLIENT, kShim = SHIM_LIBRARY;

class ShimCuda : public testing::Test {
 protected:
  Environment environment(const Environment& extra = {}) const {
    Environment out = {{"LD_PRELOAD", kShim}, {"LOCKSTEP_DIR", folder_.path()}};
    for (const auto& [name, value] : extra) out[name] = value;
    return out;
  }
  Outcome client(std::vector<std::string> arguments, const Environment& extra = {}) {
    arguments.insert(arguments.begin(), kClient);
    return run(arguments, environment(extra), 30);
  }
  TraceFile only_trace() const {
    const std::vector<std::string> found = folder_.traces();
    EXPECT_EQ(found.size(), 1u);
    if (found.empty()) return {};
    Result<TraceFile> file = trace::read_trace(found[0]);
    EXPECT_TRUE(file) << file.error();
    if (!file) return {};
    for (const std::string& problem : file->problems) ADD_FAILURE() << problem;
    return *file;
  }
  // Waits, in any build on any machine, until the trace says so.
  template <class Condition>
  bool becomes(Condition condition, double seconds = 20) const {
    for (double waited = 0; waited < seconds; waited += 0.05) {
      const std::vector<std::string> found = folder_.traces();
      if (!found.empty()) {
        const Result<TraceFile> file = trace::read_trace(found[0]);
        if (file && condition(*file)) return true;
      }
      usleep(50000);
    }
    return false;
  }

  TempFolder folder_;
};

std::string name_of(const HostCall& call) {
  const abi::HostFunction* function = abi::find_host_function(call.fn);
  return function ? function->name : "?";
}

TEST_F(ShimCuda, HostCallsAreRecordedOnceAndTheirResultsUntouched) {
  const Outcome plain = run({kClient, "hosts"}, {});
  const Outcome traced = client({"hosts"});
  EXPECT_TRUE(plain.exited_with(0) && traced.exited_with(0));
  EXPECT_EQ(traced.out, plain.out);
  EXPECT_EQ(traced.err, "");
  const TraceFile file = only_trace();
  std::vector<std::string> names;
  for (const HostCall& call : file.host_calls) names.push_back(name_of(call));
  EXPECT_EQ(names, (std::vector<std::string>{"cudaEventRecord", "cudaStreamSynchronize", "cudaStreamSynchronize",
                                             "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaMemcpy",
                                             "cudaStreamWaitEvent", "cudaGraphLaunch", "cuStreamSynchronize"}));
  ASSERT_EQ(names.size(), 10u);
  for (const HostCall& call : file.host_calls) {
    EXPECT_TRUE(call.returned);
    EXPECT_GE(call.return_time.mono_ns, call.called.mono_ns);
    EXPECT_EQ(call.comm_calls, 1u);
    EXPECT_EQ(file.stack(call.stack).empty(), call.kind == abi::HostKind::order);
  }
  const auto& calls = file.host_calls;
  EXPECT_EQ(calls[0].other, 0x77u);
  EXPECT_EQ(calls[1].object, 0x77u);
  EXPECT_EQ(calls[2].object, 0x78u);
  EXPECT_EQ(calls[3].object, calls[0].object);
  EXPECT_EQ(calls[5].bytes, 8u);
  EXPECT_EQ(calls[5].result, 0);
  EXPECT_EQ(calls[6].result, 21);
  EXPECT_EQ(calls[7].object, 0x78u);
  EXPECT_EQ(calls[7].other, calls[0].object);
  EXPECT_EQ(calls[8].object, 0x99u);
  EXPECT_EQ(calls[8].other, 0x77u);
  EXPECT_EQ(file.graph_launches, 1u);
  EXPECT_EQ(file.host_waits, 7u);
  ASSERT_EQ(file.comms.size(), 1u);
  EXPECT_EQ(file.comms[0].last_stream, 0x77u);
}

TEST_F(ShimCuda, AWaitThatDoesNotReturnIsOnRecord) {
  Process process({kClient, "stuck"}, environment({{"LOCKSTEP_STATES", "0"}}));
  ASSERT_TRUE(process.wait_for("ready", 20));
  ASSERT_TRUE(becomes([](const TraceFile& file) { return !file.threads.empty() && file.threads[0].open_wait; }));
  kill(process.pid(), SIGKILL);
  process.finish(10);
  const TraceFile file = only_trace();
  ASSERT_FALSE(file.host_calls.empty());
  const HostCall& last = file.host_calls.back();
  EXPECT_EQ(name_of(last), "cudaEventSynchronize");
  EXPECT_FALSE(last.returned);
  EXPECT_EQ(last.comm_calls, 3u);
  const auto main = std::find_if(file.threads.begin(), file.threads.end(), [](const auto& t) { return t.open_wait; });
  ASSERT_NE(main, file.threads.end());
  EXPECT_EQ(main->open_wait, last.event);
  EXPECT_EQ(main->wait_fn, last.fn);
  EXPECT_EQ(main->wait_object, last.object);
  EXPECT_GT(main->wait_since.mono_ns, 0);
}

}  // namespace
}  // namespace lockstep
