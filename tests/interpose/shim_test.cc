// SPDX-License-Identifier: MIT
//
// What the shim records of calls and communicators, and that the client cannot tell.

#include <set>

#include "interpose/abi/comm_hash.h"
#include "tests/interpose/shim_fixture.h"

namespace lockstep {
namespace {

using abi::Fn;
using trace::Call;
using trace::CommInfo;
using trace::CommState;
using trace::TraceFile;

TEST_F(Shim, ResultsAndErrnoAreNotTouched) {
  const Outcome plain = run({kClient, "results"}, {});
  const Outcome traced = client({"results"});
  EXPECT_TRUE(plain.exited_with(0) && traced.exited_with(0));
  EXPECT_EQ(traced.out, plain.out);
  EXPECT_EQ(traced.err, "");
}

TEST_F(Shim, TheHeaderSaysWhoItWas) {
  ASSERT_TRUE(client({"init"}, {{"NCCL_DEBUG", "WARN"}, {"LOCKSTEP_RUN_ID", "job7"}}).exited_with(0));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.header.env_rank, 1);
  EXPECT_EQ(file.header.env_world_size, 4);
  EXPECT_EQ(file.header.rank_source, trace::RankSource::rank);
  EXPECT_EQ(file.header.nccl_version, 22809u);
  EXPECT_NE(std::string(file.header.nccl_path).find("libnccl.so.2"), std::string::npos) << file.header.nccl_path;
  EXPECT_EQ(std::string(file.header.exe), kClient);
  EXPECT_EQ(std::string(file.header.command), kClient + " init");
  EXPECT_STREQ(file.header.run_id, "job7");
  EXPECT_EQ(file.header.stacks_enabled, 1u) << file.header.stacks_note;
  EXPECT_EQ(file.exit_kind, trace::ExitKind::exit);
  EXPECT_EQ(file.exit_code, 0);
  EXPECT_EQ(trace::look_alive(file), trace::Liveness::dead);
  ASSERT_EQ(file.texts.size(), 1u);
  EXPECT_NE(file.texts[0].find("\nNCCL_DEBUG=WARN"), std::string::npos);
  EXPECT_FALSE(file.modules.empty());
  const bool knows_itself = std::any_of(file.modules.begin(), file.modules.end(), [](const trace::Module& m) {
    return m.path == kClient && m.build_id.size() >= 16;
  });
  EXPECT_TRUE(knows_itself);
}

TEST_F(Shim, EveryCallHasItsNumberAndItsCommunicator) {
  ASSERT_TRUE(client({"sequences"}).exited_with(0));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.torn + file.overwritten + file.dropped, 0u);
  const std::vector<Call> reduces = of(file, Fn::AllReduce);
  const auto number = [&](uint64_t count) {
    for (const Call& call : reduces)
      if (call.count == count) return call.seq;
    return uint64_t{12345};
  };
  EXPECT_EQ(number(10), 0u);
  EXPECT_EQ(number(1004), UINT64_MAX);
  EXPECT_EQ(number(0), UINT64_MAX);
  EXPECT_EQ(number(12), 2u);
  EXPECT_EQ(number(13), UINT64_MAX);  // its group failed
  EXPECT_EQ(number(14), 3u);
  EXPECT_EQ(number(15), 0u);
  EXPECT_EQ(number(16), 0u);
  EXPECT_EQ(number(17), 0u);
  EXPECT_EQ(number(18), 0u);
  ASSERT_EQ(of(file, Fn::Bcast).size(), 1u);
  EXPECT_EQ(of(file, Fn::Bcast)[0].seq, 1u);
  EXPECT_EQ(of(file, Fn::Bcast)[0].peer, 2);
  EXPECT_TRUE(of(file, Fn::Bcast)[0].flags & trace::kInPlace);
  EXPECT_TRUE(of(file, Fn::Broadcast).empty()) << "NCCL's own nested call was counted";
  EXPECT_EQ(of(file, Fn::GetUniqueId).size(), 2u) << "the one inside ncclCommInitAll was counted";

  const std::vector<Call> sends = of(file, Fn::Send);
  ASSERT_EQ(sends.size(), 4u);
  EXPECT_EQ(sends[0].seq, 0u);
  EXPECT_EQ(sends[1].seq, UINT64_MAX);
  EXPECT_EQ(sends[2].seq, 1u);
  EXPECT_EQ(sends[3].seq, 0u);  // to another peer
  ASSERT_EQ(of(file, Fn::Recv).size(), 1u);
  EXPECT_EQ(of(file, Fn::Recv)[0].seq, 0u);
  EXPECT_EQ(of(file, Fn::Recv)[0].group_depth, 2);

  for (const Call& call : file.calls) {
    EXPECT_TRUE(call.returned);
    EXPECT_GT(call.called.mono_ns, 0);
    EXPECT_GE(call.return_time.mono_ns, call.called.mono_ns);
  }
  const Call& first = reduces[0];
  EXPECT_EQ(first.step, std::optional<uint64_t>(3));
  EXPECT_EQ(first.redop, ncclMax);
  EXPECT_EQ(first.dtype, ncclFloat32);
  EXPECT_EQ(first.stream, 0x77u);
  EXPECT_TRUE(first.flags & trace::kInPlace);
  EXPECT_FALSE(file.stack(first.stack).empty());

  ASSERT_EQ(file.comms.size(), 8u);
  const CommInfo& parent = file.comms[0];
  EXPECT_EQ(parent.name, "dp");
  EXPECT_EQ(parent.rank, 1);
  EXPECT_EQ(parent.nranks, 4);
  EXPECT_EQ(parent.device, 1);
  EXPECT_EQ(parent.coll_called, 4u);
  EXPECT_EQ(parent.coll_returned, 4u);
  EXPECT_EQ(parent.state, CommState::destroyed);
  const CommInfo& child = file.comms[1];
  EXPECT_EQ(child.id, abi::comm_hash_of_child(parent.id, 1, 7));
  EXPECT_EQ(child.parent_serial, parent.serial);
  EXPECT_EQ(child.color, 7);
  EXPECT_EQ(child.nranks, 2);
  EXPECT_EQ(child.rank, 0);
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(file.comms[2 + static_cast<size_t>(i)].rank, i);
    EXPECT_EQ(file.comms[2 + static_cast<size_t>(i)].id, file.comms[2].id);
    EXPECT_NE(file.comms[2].id, 0u);
  }
  EXPECT_EQ(file.comms[5].state, CommState::live);
  EXPECT_EQ(file.comms[5].id, file.comms[6].id);
  EXPECT_EQ(file.comms[6].coll_called, 1u);
  EXPECT_EQ(file.comms[7].name, "tp");
  EXPECT_EQ(file.comms[7].state, CommState::aborted);
  EXPECT_GT(file.comms[7].ready.mono_ns, 0);  // known by the first operation that succeeded

  const std::vector<Call> splits = of(file, Fn::CommSplit);
  ASSERT_EQ(splits.size(), 2u);
  EXPECT_EQ(splits[0].comm, parent.serial);
  EXPECT_EQ(splits[0].new_comm, child.serial);
  EXPECT_EQ(splits[1].new_comm, 0u);  // no colour, no communicator
  EXPECT_EQ(splits[1].seq, splits[0].seq + 1);

  ASSERT_EQ(file.marks.size(), 4u);
  EXPECT_EQ(file.marks[1].text, "backward");
  EXPECT_EQ(file.marks[2].text, "shard3:17");
}

TEST_F(Shim, TheCommunicatorsIdIsNcclsOwnHash) {
  ASSERT_TRUE(client({"init"}).exited_with(0));
  const TraceFile file = only_trace();
  ncclUniqueId id = {};
  const int one = 1;
  memcpy(id.internal, &file.header.pid, sizeof file.header.pid);
  memcpy(id.internal + 8, &one, sizeof one);
  ASSERT_EQ(file.comms.size(), 1u);
  EXPECT_EQ(file.comms[0].id, abi::comm_hash_of_unique_id(&id));
}

TEST_F(Shim, ExceptionsPassFramesAboveAHookedCall) {
  const Outcome outcome = client({"exceptions"});
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.out, "3 3\n");
}

TEST_F(Shim, TenThousandThreadsComeAndGo) {
  Environment extra;
#ifdef __SANITIZE_THREAD__
  extra["LOCKSTEP_STACKS"] = "0";  // its runtime does not survive libunwind's thread-exit hook; see docs/shim.md
#endif
  const Outcome outcome = harm_client({"threads", "10000"}, extra, 60);
  ASSERT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.out, "10000 results, errno changed 0 times\n");
  EXPECT_EQ(outcome.err, "");
  const TraceFile file = only_trace();
  EXPECT_EQ(of(file, Fn::AllReduce).size(), 10000u);
  std::set<uint64_t> numbers;
  for (const Call& call : of(file, Fn::AllReduce)) numbers.insert(call.seq);
  EXPECT_EQ(numbers.size(), 10000u);
  EXPECT_LE(file.threads.size(), 1u);  // the main thread; all others gave their slot back
}

TEST_F(Shim, AForkedChildLeavesTheParentsFileAlone) {
  ASSERT_TRUE(harm_client({"forks"}).exited_with(0));
  const std::vector<std::string> found = folder_.traces();
  ASSERT_EQ(found.size(), 2u);
  for (const std::string& path : found) {
    Result<TraceFile> file = trace::read_trace(path);
    ASSERT_TRUE(file) << file.error();
    std::vector<uint64_t> counts;
    for (const Call& call : of(*file, Fn::AllReduce)) counts.push_back(call.count);
    if (file->exit_code == 5)
      EXPECT_EQ(counts, (std::vector<uint64_t>{22}));
    else
      EXPECT_EQ(counts, (std::vector<uint64_t>{20, 23}));
    EXPECT_EQ(file->exit_kind, trace::ExitKind::exit);
    EXPECT_EQ(file->torn, 0u);
  }
}

TEST_F(Shim, MoreCommunicatorsThanSlots) {
  ASSERT_TRUE(harm_client({"communicators", "3000"}).exited_with(0));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.comms.size(), trace::kCommSlots);
  EXPECT_EQ(file.comms_dropped, 3001 - trace::kCommSlots);
  EXPECT_EQ(file.comms.front().serial, 1u);  // the living one was not thrown out
  EXPECT_EQ(file.comms.front().coll_called, 1u);
  EXPECT_EQ(file.comms.back().serial, 3001u);
  std::set<uint64_t> ids;
  for (const CommInfo& c : file.comms) ids.insert(c.id);
  EXPECT_EQ(ids.size(), file.comms.size());
}

// --- settings and places ---

TEST_F(Shim, SwitchedOffItLeavesNothing) {
  const Outcome outcome = client({"results"}, {{"LOCKSTEP", "0"}});
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.out, run({kClient, "results"}, {}).out);
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(folder_.traces().empty());
}

TEST_F(Shim, AFolderThatCannotBeWrittenIsOneSentence) {
  // A file where the folder should be: root may write into any real folder.
  const std::string path = folder_.path() + "/file";
  trace::spill(path, "");
  const Outcome outcome = client({"results"}, {{"LOCKSTEP_DIR", path}});
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_EQ(outcome.out, run({kClient, "results"}, {}).out);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("not recording this process"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find(path), std::string::npos) << outcome.err;
}

TEST_F(Shim, ASettingThatMakesNoSenseIsOneSentence) {
  const Outcome outcome = client({"init"}, {{"LOCKSTEP_HANG_SECONDS", "soon"}});
  EXPECT_TRUE(outcome.exited_with(0));
  EXPECT_NE(outcome.err.find("LOCKSTEP_HANG_SECONDS=soon"), std::string::npos) << outcome.err;
  EXPECT_EQ(only_trace().header.hang_ms, 60000u);
}

TEST_F(Shim, FractionsOfASecondAreFine) {
  EXPECT_EQ(client({"init"}, {{"LOCKSTEP_HANG_SECONDS", "1.25"}}).err, "");
  EXPECT_EQ(only_trace().header.hang_ms, 1250u);
}

TEST_F(Shim, WithoutStacksTheReasonIsNoted) {
  ASSERT_TRUE(client({"call", "10"}, {{"LOCKSTEP_STACKS", "0"}}).exited_with(0));
  const TraceFile file = only_trace();
  EXPECT_EQ(file.header.stacks_enabled, 0u);
  EXPECT_NE(std::string(file.header.stacks_note).find("LOCKSTEP_STACKS"), std::string::npos);
  EXPECT_EQ(of(file, Fn::AllReduce)[0].stack, 0u);
}

TEST_F(Shim, TheDefaultFolderIsNamedAfterTheRun) {
  ASSERT_TRUE(run({kClient, "init"},
                  environment({{"LOCKSTEP_DIR", ""}, {"SLURM_JOB_ID", "4711"}, {"SLURM_RESTART_COUNT", "2"}}), 30,
                  folder_.path())
                  .exited_with(0));
  EXPECT_TRUE(std::filesystem::is_directory(folder_.path() + "/lockstep-traces/4711.2"));
  ASSERT_TRUE(run({kClient, "init"}, environment({{"LOCKSTEP_DIR", ""}}), 30, folder_.path()).exited_with(0));
  const std::string ours = "." + std::to_string(getpid());
  bool found = false;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/lockstep-traces"))
    found |= entry.path().string().ends_with(ours);
  EXPECT_TRUE(found) << "no folder is named after the process that started the run";
}

TEST_F(Shim, AProcessThatNeverUsesNcclIsLeftAlone) {
  EXPECT_TRUE(run({"/bin/true"}, environment()).exited_with(0));
  EXPECT_TRUE(folder_.traces().empty());
}

}  // namespace
}  // namespace lockstep
