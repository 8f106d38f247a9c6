// SPDX-License-Identifier: MIT
//
// Host waits, graph launches, and the states of operations on streams, with a CUDA whose work is done when the client says.

#include <gtest/gtest.h>

#include <algorithm>

#include "interpose/abi/host_functions.h"
#include "interpose/trace/digest.h"
#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {
namespace {

using trace::HostCall;
using trace::TempFolder;
using trace::TraceFile;

const std::string kClient = SHIM_CLIENT, kShim = SHIM_LIBRARY;

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
  TraceFile only_trace() const { return folder_.only_trace(); }
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

// The host is in CUDA, not in NCCL: one line says so, once, with the operation it waits behind, and a snapshot is asked for.
TEST_F(ShimCuda, AWaitThatDoesNotReturnIsSaidOnce) {
  Process process({kClient, "stuck stream"}, environment({{"LOCKSTEP_STATES", "0"}, {"LOCKSTEP_HANG_SECONDS", "0.4"}}));
  ASSERT_TRUE(process.wait_for(" s\n", 20)) << process.outcome().err;
  EXPECT_NE(process.outcome().err.find("has been in cudaStreamSynchronize behind AllReduce #2 on comm-"), std::string::npos)
      << process.outcome().err;
  EXPECT_TRUE(becomes([](const TraceFile& file) { return !file.snapshots.empty(); }));
  EXPECT_EQ(only_trace().snapshots.front().why, 'r');
  usleep(1000000);  // more than two thresholds
  kill(process.pid(), SIGKILL);
  process.finish(10);
  const std::string& err = process.outcome().err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}

// --- states ------------------------------------------------------------------------------------------------------------------

using Count = std::optional<uint64_t>;

TEST_F(ShimCuda, StartedAndCompletedAreCounted) {
  const std::string first = folder_.path() + "/first", second = folder_.path() + "/second";
  Process process({kClient, "states", first, second}, environment());
  ASSERT_TRUE(process.wait_for("three called", 20)) << process.outcome().err;
  EXPECT_TRUE(becomes([](const TraceFile& file) {
    return !file.comms.empty() && file.comms[0].coll_started == Count(2) && file.comms[0].coll_completed == Count(1);
  }));
  usleep(200000);
  const TraceFile before = only_trace();
  EXPECT_EQ(before.states, trace::StatesKnown::watched);
  EXPECT_EQ(before.comms.at(0).coll_called, 3u);
  EXPECT_EQ(before.comms.at(0).coll_started, Count(2)) << "more than was released has started";
  EXPECT_EQ(before.comms.at(0).coll_completed, Count(1));
  EXPECT_EQ(before.comms.at(0).coll_unstarted, Count(2));
  EXPECT_GT(before.driver_answered.mono_ns, 0);
  trace::spill(first, "");
  ASSERT_TRUE(process.wait_for("all called", 20));
  EXPECT_TRUE(becomes([](const TraceFile& file) { return file.comms.at(0).coll_completed == Count(5); }));
  trace::spill(second, "");
  const Outcome outcome = process.finish(20);
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.out, "8 events\n") << "a group has one pair of events a communicator";
  EXPECT_EQ(only_trace().comms.at(0).unwatched, 0u);
}

TEST_F(ShimCuda, WhatAnAbortCutsOffIsNotComplete) {
  const std::string gate = folder_.path() + "/gate";
  Process process({kClient, "cut off", gate}, environment());
  ASSERT_TRUE(process.wait_for("called", 20)) << process.outcome().err;
  EXPECT_TRUE(becomes([](const TraceFile& file) { return file.comms.at(0).coll_completed == Count(1); }));
  trace::spill(gate, "");
  EXPECT_TRUE(process.finish(20).exited_with(0));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.comms.at(0).state, trace::CommState::aborted);
  EXPECT_EQ(file.comms.at(0).coll_completed, Count(1)) << "what was cut off was taken to have completed";
}

TEST_F(ShimCuda, UnderCaptureNoEventIsRecordedAndReplaysAreCounted) {
  const Outcome outcome = client({"capture"});
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.out, "0 under capture\n");
  const TraceFile file = only_trace();
  std::vector<bool> captured;
  for (const trace::Call& call : file.calls)
    if (call.fn == static_cast<uint16_t>(abi::Fn::AllReduce)) captured.push_back(call.flags & trace::kCaptured);
  EXPECT_EQ(captured, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(file.captured_calls, 2u);
  EXPECT_EQ(file.graph_launches, 3u);
  EXPECT_EQ(file.comms.at(0).captured, 2u);
  EXPECT_EQ(file.comms.at(0).blind, trace::kBlindGraph);
  ASSERT_EQ(file.marks.size(), 1u) << "blind from here, once";
  EXPECT_EQ(file.marks[0].kind, trace::kMarkBlind);
  EXPECT_EQ(file.marks[0].value, 1u);
}

TEST_F(ShimCuda, ADriverThatDoesNotAnswerStopsNeitherHeartbeatNorHangDetection) {
  Process process({kClient, "silent driver"}, environment({{"LOCKSTEP_HANG_SECONDS", "0.5"}}));
  ASSERT_TRUE(process.wait_for("has been in AllReduce #1", 20)) << process.outcome().err;
  uint64_t beats = 0;
  EXPECT_TRUE(becomes([&](const TraceFile& file) {
    beats = file.beats;
    return file.driver_asked.mono_ns > file.driver_answered.mono_ns;
  }));
  EXPECT_TRUE(becomes([&](const TraceFile& file) { return file.beats > beats + 3; })) << "the heart stopped with the driver";
  const TraceFile file = only_trace();
  EXPECT_FALSE(file.snapshots.empty());
  EXPECT_GT(file.driver_asked.mono_ns, file.driver_answered.mono_ns);
}

TEST_F(ShimCuda, WhatIsBeyondTheProbesIsCounted) {
  ASSERT_TRUE(client({"many"}).exited_with(0));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.comms.at(0).coll_called, 1000u);
  // 128 one by one, of the next 256 each 4th, of the rest each 16th.
  EXPECT_EQ(file.comms.at(0).unwatched, 1000u - (128u + 64u + 39u));
  EXPECT_EQ(file.comms.at(0).state, trace::CommState::aborted);
}

TEST_F(ShimCuda, TheLastCallIsWatchedHoweverFastTheOnesBeforeItWere) {
  Process process({kClient, "fast"}, environment());
  ASSERT_TRUE(process.wait_for("all called", 20)) << process.outcome().err;
  EXPECT_TRUE(becomes([](const TraceFile& file) { return file.comms.at(0).coll_completed == Count(1001); }));
  usleep(200000);
  EXPECT_EQ(only_trace().comms.at(0).coll_called, 1002u);
  EXPECT_EQ(only_trace().comms.at(0).coll_started, Count(1001));
  EXPECT_EQ(only_trace().comms.at(0).coll_unstarted, Count(1001));
}

TEST_F(ShimCuda, SwitchedOffNothingIsAsked) {
  const Outcome outcome = client({"many"}, {{"LOCKSTEP_STATES", "0"}});
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.out, "0 queries\n");
  const TraceFile file = only_trace();
  EXPECT_EQ(file.states, trace::StatesKnown::switched_off);
  EXPECT_EQ(file.comms.at(0).coll_started, Count());
  EXPECT_EQ(file.comms.at(0).unwatched, 0u);
}

// --- digests -----------------------------------------------------------------------------------------------------------------

TEST_F(ShimCuda, DigestsAreThoseOfTheBuffers) {
  unsigned char in[256], out[256];
  for (int i = 0; i < 256; i++) in[i] = static_cast<unsigned char>(i), out[i] = static_cast<unsigned char>(255 - i);
  ASSERT_TRUE(client({"digests"}, {{"LOCKSTEP_DIGEST", "1"}}).exited_with(0));
  const TraceFile file = only_trace();
  struct Expected {
    abi::Fn fn;
    bool output;
    const unsigned char* at;
    uint64_t bytes, seq;
  };
  const Expected expected[] = {
      {abi::Fn::AllReduce, false, in, 40, 0}, {abi::Fn::AllReduce, true, out, 40, 0}, {abi::Fn::AllGather, false, in, 10, 1},
      {abi::Fn::AllGather, true, out, 40, 1}, {abi::Fn::Broadcast, true, out, 20, 2}, {abi::Fn::AllReduce, false, in, 3, 3},
      {abi::Fn::AllReduce, true, in, 3, 3},   {abi::Fn::AllReduce, true, out, 1, 4},
  };
  ASSERT_EQ(file.digests.size(), std::size(expected));
  for (size_t i = 0; i < std::size(expected); i++) {
    const trace::Digest& digest = file.digests[i];
    EXPECT_EQ(digest.fn, static_cast<uint16_t>(expected[i].fn)) << i;
    EXPECT_EQ(digest.output, expected[i].output) << i;
    EXPECT_EQ(digest.bytes, expected[i].bytes) << i;
    EXPECT_EQ(digest.seq, expected[i].seq) << i;
    EXPECT_EQ(digest.comm, 1u);
    EXPECT_EQ(digest.value, trace::digest_of(expected[i].at, expected[i].bytes)) << i;
    const bool of_its_call = std::any_of(file.calls.begin(), file.calls.end(), [&](const trace::Call& call) {
      return call.event == digest.call && call.fn == digest.fn && call.seq == digest.seq;
    });
    EXPECT_TRUE(of_its_call) << i;
  }
  EXPECT_EQ(file.digests_dropped, 1u) << "the one in device memory";
}

TEST_F(ShimCuda, DigestsOfChosenFunctionsOnly) {
  ASSERT_TRUE(client({"digests"}, {{"LOCKSTEP_DIGEST", "Broadcast,AllGather"}}).exited_with(0));
  EXPECT_EQ(only_trace().digests.size(), 3u);
}

TEST(Digest, NoticesEveryByteAndTheLength) {
  std::vector<unsigned char> bytes(100, 7);
  const uint64_t whole = trace::digest_of(bytes.data(), bytes.size());
  for (size_t i = 0; i < bytes.size(); i++) {
    bytes[i] ^= 1;
    EXPECT_NE(trace::digest_of(bytes.data(), bytes.size()), whole) << i;
    bytes[i] ^= 1;
  }
  const unsigned char zeros[40] = {};
  EXPECT_NE(trace::digest_of(zeros, 33), trace::digest_of(zeros, 34));
  EXPECT_EQ(trace::digest_of(bytes.data(), bytes.size()), whole);
}

}  // namespace
}  // namespace lockstep
