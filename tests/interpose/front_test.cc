// SPDX-License-Identifier: MIT
//
// The front ends for NCCL that is linked into the program, driven as NCCL drives them, and NVTX by the real libnccl where there
// is one: without a GPU its calls fail, but the ranges around them are pushed all the same.

#include <gtest/gtest.h>

#include "interpose/abi/nccl.h"
#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {
namespace {

using abi::Fn;
using trace::Call;
using trace::TempFolder;
using trace::TraceFile;

const std::string kShim = SHIM_LIBRARY, kClient = SHIM_FRONT_CLIENT, kRealNccl = REAL_NCCL;

class Front : public testing::Test {
 protected:
  Outcome client(std::vector<std::string> arguments, const Environment& extra = {}) {
    arguments.insert(arguments.begin(), kClient);
    Environment environment = {{"LOCKSTEP_DIR", folder_.path()}, {"LD_PRELOAD", ""}};
    for (const auto& [name, value] : extra) environment[name] = value;
    return run(arguments, environment);
  }
  TraceFile only_trace() const { return folder_.only_trace(); }
  static std::vector<std::string> names(const TraceFile& file) {
    std::vector<std::string> out;
    for (const Call& call : file.calls) out.push_back(abi::find_function(call.fn)->name);
    return out;
  }
  TempFolder folder_;
};

TEST_F(Front, NvtxRangesAreCalls) {
  const Outcome outcome = client({"nvtx", kShim}, {{"LOCKSTEP_NVTX_PHASES", "forward,backward"}});
  ASSERT_TRUE(outcome.exited_with(0)) << outcome.err;
  // Levels as NVTX wants them from push and pop.
  EXPECT_EQ(outcome.out.substr(0, 6), "00\n00\n");
  EXPECT_EQ(outcome.out.substr(outcome.out.size() - 7), "210 -2\n");
  const TraceFile file = only_trace();
  EXPECT_EQ(names(file), (std::vector<std::string>{"CommInitRank", "AllReduce", "Bcast", "Reduce", "CommSplit", "Send",
                                                   "GroupStart", "AllGather", "GroupEnd", "CommDestroy", "AllReduce"}));
  ASSERT_EQ(file.comms.size(), 2u);
  EXPECT_EQ(file.comms[0].id, 0xabcu);
  EXPECT_EQ(file.comms[0].rank, 2);
  EXPECT_EQ(file.comms[0].nranks, 4);
  EXPECT_EQ(file.comms[0].device, 1);
  EXPECT_EQ(file.comms[0].coll_called, 4u);
  EXPECT_EQ(file.comms[0].state, trace::CommState::live);
  EXPECT_EQ(file.comms[1].id, 0xdefu);
  EXPECT_EQ(file.comms[1].p2p_called, 1u);
  EXPECT_EQ(file.comms[1].state, trace::CommState::destroyed);
  ASSERT_EQ(file.calls.size(), 11u);
  for (const Call& call : file.calls) {
    EXPECT_TRUE(call.returned);
    EXPECT_TRUE(call.flags & trace::kTold);
    EXPECT_FALSE(file.stack(call.stack).empty());
  }
  EXPECT_EQ(file.calls[1].count, 4096u);
  EXPECT_EQ(file.calls[1].redop, ncclMax);
  EXPECT_EQ(file.calls[1].seq, 0u);
  EXPECT_EQ(file.calls[2].peer, 3);
  EXPECT_EQ(file.calls[3].peer, 1);
  EXPECT_EQ(file.calls[3].redop, ncclProd);
  EXPECT_EQ(file.calls[5].seq, 0u);
  EXPECT_EQ(file.calls[7].group, file.calls[6].group);
  EXPECT_EQ(file.calls[8].count, 1u) << "members of the group";
  std::vector<std::string> phases;
  for (const trace::MarkEvent& mark : file.marks) phases.push_back(mark.text);
  EXPECT_EQ(phases, (std::vector<std::string>{"forward pass", ""}));
}

class ProfilerVersion : public Front, public testing::WithParamInterface<const char*> {};
TEST_P(ProfilerVersion, ApiEventsAreCalls) {
  const Outcome outcome = client({"profiler", kShim, GetParam()});
  ASSERT_TRUE(outcome.exited_with(0)) << outcome.err;
  EXPECT_EQ(outcome.out, "lockstep 600\n");
  const TraceFile file = only_trace();
  EXPECT_EQ(names(file), (std::vector<std::string>{"AllReduce", "Broadcast", "Send"}));
  ASSERT_EQ(file.comms.size(), 1u);
  EXPECT_EQ(file.comms[0].id, 0xabcu);
  EXPECT_EQ(file.comms[0].name, "tp");
  EXPECT_EQ(file.comms[0].rank, 2);
  EXPECT_EQ(file.comms[0].nranks, 4);
  EXPECT_EQ(file.comms[0].coll_called, 2u);
  EXPECT_EQ(file.comms[0].state, trace::CommState::destroyed);
  ASSERT_EQ(file.calls.size(), 3u);
  EXPECT_EQ(file.calls[0].count, 1000u);
  EXPECT_EQ(file.calls[0].dtype, ncclFloat32);
  EXPECT_EQ(file.calls[0].stream, 0x77u);
  EXPECT_EQ(file.calls[1].peer, 3);
  EXPECT_TRUE(file.calls[1].flags & trace::kCaptured);
  EXPECT_EQ(file.calls[2].dtype, ncclBfloat16);
}
INSTANTIATE_TEST_SUITE_P(All, ProfilerVersion, testing::Values("ncclProfiler_v5", "ncclProfiler_v6"),
                         [](const auto& at) { return std::string(at.param); });

// The hooks see the calls: nothing is told twice.
TEST_F(Front, WhereTheHooksSeeTheCallsTheRealLibrarysRangesAreIgnored) {
  if (kRealNccl.empty()) GTEST_SKIP() << "no libnccl was found when this was built";
  const Outcome outcome = client({"real", kRealNccl}, {{"NVTX_INJECTION64_PATH", kShim}, {"LD_PRELOAD", kShim}});
  ASSERT_TRUE(outcome.exited_with(0)) << outcome.err;
  EXPECT_EQ(outcome.out, "4\n00\n");
  EXPECT_TRUE(folder_.traces().empty() || only_trace().calls.size() <= 3);
}

TEST_F(Front, TheRealLibraryPushesRangesWithoutAGpu) {
  if (kRealNccl.empty()) GTEST_SKIP() << "no libnccl was found when this was built";
  const Outcome plain = client({"real", kRealNccl});
  EXPECT_TRUE(folder_.traces().empty());
  const Outcome outcome = client({"real", kRealNccl}, {{"NVTX_INJECTION64_PATH", kShim}});
  ASSERT_TRUE(outcome.exited_with(0)) << outcome.err;
  EXPECT_EQ(outcome.out, plain.out);
  const TraceFile file = only_trace();
  EXPECT_EQ(names(file), (std::vector<std::string>{"AllReduce", "GroupStart", "GroupEnd"}));
  ASSERT_FALSE(file.calls.empty());
  EXPECT_EQ(file.calls[0].count, 48u) << "bytes";
  EXPECT_EQ(file.calls[0].redop, ncclMax);
}

TEST_F(Front, SwitchedOffNothingIsTold) {
  ASSERT_EQ(client({"nvtx", kShim}, {{"LOCKSTEP", "0"}}).status >> 8, 2) << "the library should have refused NVTX";
  ASSERT_TRUE(client({"profiler", kShim, "ncclProfiler_v5"}, {{"LOCKSTEP", "0"}}).exited_with(0));
  EXPECT_TRUE(folder_.traces().empty());
}

}  // namespace
}  // namespace lockstep
