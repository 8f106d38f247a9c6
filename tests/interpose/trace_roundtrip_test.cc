// SPDX-License-Identifier: MIT
//
// Writer and reader in one test, so that neither can drift: what is written is read back equal; what is torn, cut,
// overwritten, foreign or newer is told apart and named.

#include <fcntl.h>
#include <sys/wait.h>

#include "interpose/trace/attach.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep::trace {
namespace {

class TraceRoundtrip : public TraceFixture {};

TEST_F(TraceRoundtrip, CallsComeBackEqual) {
  open();
  const StackRef ref = stack({0x111, 0x222, 0x333});
  const uint64_t first = begin(10, ref);
  const uint64_t second = begin(20);
  end(first, 0);
  mark(kMarkSample, 42, "shard3:17");
  const TraceFile file = read();
  ASSERT_EQ(file.calls.size(), 2u);
  const Call& call = file.calls[0];
  EXPECT_EQ(call.event, first);
  EXPECT_EQ(call.fn, static_cast<uint16_t>(abi::Fn::AllReduce));
  EXPECT_EQ(call.tid, 77u);
  EXPECT_EQ(call.comm, 1u);
  EXPECT_EQ(call.peer, -1);
  EXPECT_EQ(call.count, 10u);
  EXPECT_EQ(call.seq, 10u);
  EXPECT_EQ(call.redop, 2);
  EXPECT_EQ(call.dtype, 7);
  EXPECT_EQ(call.sendbuff, 0x100au);
  EXPECT_EQ(call.recvbuff, 0x200au);
  EXPECT_EQ(call.stream, 0x3000u);
  EXPECT_EQ(call.step, std::optional<uint64_t>(9));
  EXPECT_TRUE(call.returned);
  EXPECT_EQ(call.result, 0);
  EXPECT_GE(call.return_time.mono_ns, call.called.mono_ns);
  EXPECT_NEAR(static_cast<double>(call.called.wall_ns), static_cast<double>(clock_ns(CLOCK_REALTIME)), 10e9);
  EXPECT_EQ(file.stack(call.stack), (std::vector<uint64_t>{0x111, 0x222, 0x333}));
  EXPECT_EQ(file.calls[1].event, second);
  EXPECT_FALSE(file.calls[1].returned);
  ASSERT_EQ(file.marks.size(), 1u);
  EXPECT_EQ(file.marks[0].text, "shard3:17");
  EXPECT_EQ(file.marks[0].value, 42u);
  EXPECT_EQ(file.events, 4u);
  EXPECT_EQ(file.torn + file.overwritten + file.dropped, 0u);
  EXPECT_TRUE(file.problems.empty()) << file.problems[0];
  EXPECT_EQ(file.header.env_rank, 3);
}

TEST_F(TraceRoundtrip, LongMarksAreCutAndTerminated) {
  open();
  mark(kMarkNote, 0, std::string(300, 'x').c_str());
  mark(kMarkStep, 7, nullptr);
  const TraceFile file = read();
  ASSERT_EQ(file.marks.size(), 2u);
  EXPECT_EQ(file.marks[0].text, std::string(sizeof(Record::mark.text) - 1, 'x'));
  EXPECT_EQ(file.marks[1].text, "");
}

TEST_F(TraceRoundtrip, FailedCallsAndFailedGroupsGiveTheirNumbersBack) {
  open();
  end(begin(1), 5);
  end(begin(2), 7);  // in progress: taken
  const auto group_of = [&](uint32_t group, int32_t result, abi::Fn fn) {
    end(begin(3, 0, group, 1));
    end(begin(0, 0, group, 1, fn), result, fn);
  };
  group_of(1, 4, abi::Fn::GroupEnd);
  group_of(2, 0, abi::Fn::GroupEnd);
  group_of(3, 0, abi::Fn::GroupSimulateEnd);
  const TraceFile file = read();
  ASSERT_EQ(file.calls.size(), 8u);
  EXPECT_EQ(file.calls[0].seq, UINT64_MAX);
  EXPECT_EQ(file.calls[1].seq, 2u);
  EXPECT_EQ(file.calls[2].seq, UINT64_MAX);
  EXPECT_TRUE(file.calls[2].flags & kGivenBack);
  EXPECT_EQ(file.calls[4].seq, 3u);
  EXPECT_FALSE(file.calls[4].flags & kGivenBack);
  EXPECT_EQ(file.calls[6].seq, UINT64_MAX);
}

TEST_F(TraceRoundtrip, TheArenaStepsOverUnfinishedRecords) {
  open();
  const StackRef before = stack({1, 2});
  arena_reserve(trace_, ArenaKind::stack, 64);               // its writer was killed before the commit
  trace_.status->arena_next.fetch_add(48);                   // and another before it even stored the size
  const StackRef after = stack({3});
  ArenaHeader* text = arena_reserve(trace_, ArenaKind::text, 5);
  memcpy(arena_body(text), "hello", 5);
  arena_commit(text);
  const TraceFile file = read();
  EXPECT_EQ(file.stack(before), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(file.stack(after), (std::vector<uint64_t>{3}));
  ASSERT_EQ(file.texts.size(), 1u);
  EXPECT_EQ(file.texts[0], "hello");
  EXPECT_TRUE(file.stack(before + 1).empty());
  EXPECT_TRUE(file.stack(1u << 31).empty());
}

TEST_F(TraceRoundtrip, AFullArenaRefusesAndCounts) {
  open();
  const std::vector<uint64_t> deep(64, 5);
  while (stack(deep)) {
  }
  EXPECT_EQ(trace_.status->arena_dropped.load(), 1u);
  EXPECT_LE(trace_.status->arena_next.load(), kArenaBytes);
  EXPECT_NE(stack({1}), 0u);  // a small one still fits
}

TEST_F(TraceRoundtrip, ASupervisorWritesFromOutside) {
  open();
  begin(1);
  const pid_t child = fork();
  if (child == 0) {
    Result<Attachment> attached = Attachment::open(trace_.path);
    if (!attached) _exit(1);
    Snapshot snapshot;
    snapshot.when = {5, 6};
    snapshot.round = 2;
    snapshot.tid = 99;
    snapshot.state = 'S';
    snapshot.why = 'r';
    snapshot.thread_name = "worker";
    snapshot.wait_channel = "futex_wait_queue";
    snapshot.pcs = {10, 20, 30};
    Symbol symbol;
    symbol.pc = 20;
    symbol.offset = 4;
    symbol.function = "step";
    symbol.file = "train.cc";
    symbol.line = 12;
    Module module{0x1000, 0x2000, 0x3000, "00ff10", "/lib/x.so"};
    attached->set_watching();
    const bool ok = attached->add_snapshot(snapshot) && attached->add_symbol(symbol) && attached->add_module(module, 1) &&
                    attached->add_text("note");
    attached->set_ended(SupervisorState::signalled, 9, 4096);
    _exit(ok ? 0 : 2);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const TraceFile file = read();
  EXPECT_EQ(file.supervisor, SupervisorState::signalled);
  EXPECT_EQ(file.supervisor_code, 9);
  EXPECT_EQ(file.peak_rss_bytes, 4096u);
  ASSERT_EQ(file.snapshots.size(), 1u);
  EXPECT_EQ(file.snapshots[0].pcs, (std::vector<uint64_t>{10, 20, 30}));
  EXPECT_EQ(file.snapshots[0].thread_name, "worker");
  EXPECT_EQ(file.snapshots[0].wait_channel, "futex_wait_queue");
  EXPECT_EQ(file.snapshots[0].source, SnapshotSource::ptrace);
  ASSERT_EQ(file.symbols.size(), 1u);
  EXPECT_EQ(file.symbols[0].function, "step");
  EXPECT_EQ(file.symbols[0].file, "train.cc");
  EXPECT_EQ(file.symbols[0].line, 12u);
  ASSERT_EQ(file.modules.size(), 1u);
  EXPECT_EQ(file.modules[0].build_id, "00ff10");
  EXPECT_EQ(file.modules[0].path, "/lib/x.so");
  ASSERT_EQ(file.texts.size(), 1u);
  EXPECT_EQ(file.calls.size(), 1u);
}

TEST_F(TraceRoundtrip, ThreadsAndCommunicatorsComeBack) {
  open();
  ThreadSlot& thread = trace_.threads[4];
  strcpy(thread.name, "main");
  thread.state = 'S';
  thread.open_call = 12;
  thread.marks.bits = kHasStep | kHasPhase | kHasSample;
  thread.marks.step = 3;
  strcpy(thread.marks.phase, "backward");
  thread.marks.sample_value = 17;
  thread.tid = 55;
  trace_.threads[9].tid = 56;  // never marks: takes the process's latest
  trace_.status->process_marks = 5;
  CommSlot& comm = trace_.comms[0];
  comm.id = 0xabc;
  comm.rank = 1;
  comm.nranks = 4;
  comm.coll_called = 8;
  comm.coll_started = UINT64_MAX;
  comm.state = static_cast<uint32_t>(CommState::live);
  strcpy(comm.name, "tp");
  CallSummary& recent = comm.recent[3];
  recent.seq = 7;
  recent.count = 100;
  recent.peer = -1;
  recent.fn = static_cast<uint16_t>(abi::Fn::AllReduce);
  recent.event = 31;
  comm.serial = 1;
  const TraceFile file = read();
  ASSERT_EQ(file.threads.size(), 2u);
  EXPECT_EQ(file.threads[0].open_call, std::optional<uint64_t>(11));
  EXPECT_EQ(file.threads[0].phase, "backward");
  EXPECT_EQ(file.threads[0].sample, "17");
  EXPECT_EQ(file.threads[1].step, std::optional<uint64_t>(3));
  ASSERT_EQ(file.comms.size(), 1u);
  EXPECT_EQ(file.comms[0].name, "tp");
  EXPECT_EQ(file.comms[0].coll_called, 8u);
  EXPECT_FALSE(file.comms[0].coll_started);
  ASSERT_EQ(file.comms[0].recent.size(), 1u);
  EXPECT_EQ(file.comms[0].recent[0].event, 30u);
  EXPECT_EQ(file.comms[0].recent[0].seq, 7u);
}

TEST_F(TraceRoundtrip, TimesComeFromTheStampClock) {
  open();
  trace_.header->clock_source = ClockSource::tsc;  // 2 ticks a nanosecond
  trace_.status->first_clock = {1000, 5000, 105000};
  trace_.status->second_clock = {3000, 6000, 106000};
  trace_.status->heartbeat.clock = {21000, 15000, 115500};  // the wall clock was set by 500 ns
  uint64_t sequence;
  Record* record = reserve(trace_, cursor(), sequence);
  write_mark(record, sequence, 25000, kMarkStep, 1, 1, 0, nullptr, 0);
  const TraceFile file = read();
  ASSERT_EQ(file.marks.size(), 1u);
  EXPECT_EQ(file.marks[0].when.mono_ns, 17000);
  EXPECT_EQ(file.marks[0].when.wall_ns, 117500);
}

TEST_F(TraceRoundtrip, AnUnfinishedHeartbeatFallsBackToTheFirstClocks) {
  open();
  trace_.status->heartbeat.clock = {1, 1, 1};
  trace_.status->heartbeat.lock = 1;
  begin(1);
  const TraceFile file = read();
  EXPECT_FALSE(file.heartbeat_known);
  EXPECT_GT(file.calls[0].called.mono_ns, 0);
}

TEST_F(TraceRoundtrip, ASecondFileOfTheSameProcessGetsANewName) {
  open();
  Trace again = {};
  ASSERT_EQ(create(again, folder_.path().c_str(), test_header(), clocks_now(), clocks_now, kSegmentBytes).what, nullptr);
  EXPECT_STRNE(again.path, trace_.path);
  unmap(again);
  EXPECT_EQ(folder_.traces().size(), 2u);
}

TEST(TraceCreate, AFolderThatIsNotThereIsAnErrorAndLeavesNothing) {
  TempFolder folder;
  Trace trace = {};
  const Failure failure = create(trace, (folder.path() + "/no").c_str(), test_header(), clocks_now(), clocks_now, kSegmentBytes);
  EXPECT_NE(failure.what, nullptr);
  EXPECT_EQ(failure.error, ENOENT);
  EXPECT_EQ(trace.status, nullptr);
}

TEST_F(TraceRoundtrip, AClosedDescriptorIsNoLongerOurs) {
  open(4 * kSegmentBytes);
  const std::string other = folder_.path() + "/other";
  const int fd = ::open(other.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(dup2(fd, trace_.fd), 0);  // the job closed it and opened a file of its own
  for (uint64_t i = 0; i < 2 * kSegmentBytes / sizeof(Record); i++) begin(i);
  EXPECT_EQ(std::filesystem::file_size(other), 0u);
  EXPECT_EQ(read().overwritten, kSegmentBytes / sizeof(Record));
  close(fd);
}

// --- what format 2 added ---------------------------------------------------------------------------------------------------

TEST_F(TraceFixture, HostCallsAndDigestsComeBack) {
  open();
  HostFields wait = {};
  wait.stamp = static_cast<uint64_t>(clock_ns(CLOCK_MONOTONIC));
  wait.fn = static_cast<uint16_t>(abi::kHostFunctions[static_cast<unsigned>(abi::HostRow::cudaStreamSynchronize)].id);
  wait.tid = 77;
  wait.object = 0x55;
  wait.comm_calls = 9;
  wait.step = 4;
  wait.mark_bits = kHasStep;
  HostFields order = wait;
  order.fn = static_cast<uint16_t>(abi::kHostFunctions[static_cast<unsigned>(abi::HostRow::cudaEventRecord)].id);
  order.other = 0x66;
  uint64_t first, second, third, sequence;
  Record* record = reserve(trace_, cursor(), first);
  write_host_begin(record, first, wait);
  record = reserve(trace_, cursor(), second);
  write_host_begin(record, second, order);
  record = reserve(trace_, cursor(), sequence);
  write_host_end(record, sequence, wait.stamp + 1000, wait.fn, 77, first, 5);
  record = reserve(trace_, cursor(), third);
  write_host_begin(record, third, wait);
  record = reserve(trace_, cursor(), sequence);
  write_digest(record, sequence, {wait.stamp, static_cast<uint16_t>(abi::Fn::AllReduce), 77, 123, 0xfeed, 4096, 17, 2, true});
  const TraceFile file = read();
  EXPECT_EQ(file.torn, 0u);
  ASSERT_EQ(file.host_calls.size(), 3u);
  EXPECT_TRUE(file.host_calls[0].returned);
  EXPECT_EQ(file.host_calls[0].result, 5);
  EXPECT_EQ(file.host_calls[0].object, 0x55u);
  EXPECT_EQ(file.host_calls[0].comm_calls, 9u);
  EXPECT_EQ(file.host_calls[0].step, std::optional<uint64_t>(4));
  EXPECT_EQ(file.host_calls[0].kind, abi::HostKind::wait);
  EXPECT_EQ(file.host_calls[0].return_time.mono_ns - file.host_calls[0].called.mono_ns, 1000);
  EXPECT_TRUE(file.host_calls[1].returned) << "calls that only order streams have one record";
  EXPECT_EQ(file.host_calls[1].other, 0x66u);
  EXPECT_FALSE(file.host_calls[2].returned);
  ASSERT_EQ(file.digests.size(), 1u);
  EXPECT_EQ(file.digests[0].call, 123u);
  EXPECT_EQ(file.digests[0].value, 0xfeedu);
  EXPECT_EQ(file.digests[0].bytes, 4096u);
  EXPECT_EQ(file.digests[0].seq, 17u);
  EXPECT_EQ(file.digests[0].comm, 2u);
  EXPECT_TRUE(file.digests[0].output);
}

// A file of format 1 has zeros where 2 has counts, and zero would mean that nothing ever started.
TEST_F(TraceFixture, AnOlderFileDoesNotSayWhatItsFormatLacked) {
  open();
  CommSlot& slot = trace_.comms[0];
  slot.coll_started.store(UINT64_MAX);
  slot.coll_completed.store(UINT64_MAX);
  slot.serial.store(1);
  EXPECT_EQ(read().comms.at(0).p2p_started, std::optional<uint64_t>(0));
  trace_.header->version_major = 1;
  const TraceFile old = read();
  ASSERT_EQ(old.comms.size(), 1u);
  EXPECT_EQ(old.comms[0].p2p_started, std::nullopt);
  EXPECT_EQ(old.comms[0].coll_started, std::nullopt);
  EXPECT_EQ(old.states, StatesKnown::no_driver);
}

TEST_F(TraceFixture, AnEndInPlaceIsAnEnd) {
  open();
  const uint64_t first = begin(1), second = begin(2);
  end_in_place(&trace_.ring[first], first, static_cast<uint64_t>(clock_ns(CLOCK_MONOTONIC)), 5, 1);
  const TraceFile file = read();
  EXPECT_EQ(file.torn, 0u);
  ASSERT_EQ(file.calls.size(), 2u);
  EXPECT_TRUE(file.calls[0].returned);
  EXPECT_EQ(file.calls[0].result, 5);
  EXPECT_GE(file.calls[0].return_time.mono_ns, file.calls[0].called.mono_ns);
  EXPECT_EQ(file.calls[0].seq, UINT64_MAX) << "a failed call gives its number back";
  EXPECT_FALSE(file.calls[1].returned);
  EXPECT_EQ(file.calls[1].event, second);
}

// Numbers were handed out one by one, ends were records of their own, and the check covered all of a begin.
TEST_F(TraceFixture, FilesOfFormat1AreStillRead) {
  open();
  trace_.header->version_major = 1;
  trace_.status->ring_block.store(0);
  end(begin(1));
  begin(2);
  trace_.status->ring_next.store(4);  // and one number was handed out and never written
  const TraceFile file = read();
  ASSERT_EQ(file.calls.size(), 2u);
  EXPECT_TRUE(file.calls[0].returned);
  EXPECT_FALSE(file.calls[1].returned);
  EXPECT_EQ(file.torn, 1u);
}

TEST_F(TraceFixture, TheEnvironmentIsFoundByName) {
  open();
  const std::string text = "environment\nNCCL_DEBUG=WARN\nNCCL_ALGO=Ring";
  ArenaHeader* header = arena_reserve(trace_, ArenaKind::text, text.size());
  ASSERT_NE(header, nullptr);
  memcpy(arena_body(header), text.data(), text.size());
  arena_commit(header);
  const TraceFile file = read();
  EXPECT_EQ(file.environment("NCCL_DEBUG"), std::optional<std::string>("WARN"));
  EXPECT_EQ(file.environment("NCCL_ALGO"), std::optional<std::string>("Ring"));
  EXPECT_EQ(file.environment("NCCL"), std::nullopt);
}

}  // namespace
}  // namespace lockstep::trace
