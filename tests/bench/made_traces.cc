// SPDX-License-Identifier: MIT
#include "tests/bench/made_traces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "interpose/abi/functions.h"
#include "interpose/trace/reader.h"

namespace lockstep::bench {

using namespace trace;

namespace {

constexpr uint64_t kPage = 4096;
constexpr size_t kPaths = 64, kFrames = 20;
constexpr uint64_t kCallsPerStep = 10;
constexpr int64_t kBetweenCalls = 5'000'000, kCallTakes = 1'000'000;  // ns
constexpr int64_t kPendingFor = 100'000'000'000;
constexpr uint32_t kTid = 4242;
constexpr int kRanksPerHost = 8;
constexpr uint16_t kStreamSynchronize = 1;  // in host_functions.def
constexpr uint64_t kCommId = 0x5eed5eed5eed5eedull;

[[noreturn]] void give_up(const std::string& what) {
  fmt::print(stderr, "bench_diagnose: {}\n", what);
  std::exit(2);
}

int64_t clock_ns(clockid_t which) {
  struct timespec now;
  clock_gettime(which, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}
ClockPair clocks_now() {
  const int64_t mono = clock_ns(CLOCK_MONOTONIC);
  return {static_cast<uint64_t>(mono), mono, clock_ns(CLOCK_REALTIME)};
}

// This program itself, so that frames have names to be looked up.
struct Text {
  uint64_t bias = 0, start = 0, end = 0;
};
int take_first(struct dl_phdr_info* info, size_t, void* to) {
  auto* text = static_cast<Text*>(to);
  text->bias = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
    text->start = info->dlpi_addr + part.p_vaddr;
    text->end = text->start + part.p_memsz;
  }
  return 1;
}

std::string own_path() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

FileHeader header_of(int ranks) {
  FileHeader header = {};
  strcpy(header.boot_id, "made-by-bench-diagnose");  // no process of this machine
  strcpy(header.run_id, "made");
  strcpy(header.host, "template");
  strcpy(header.exe, "/opt/train");
  strcpy(header.command, "/opt/train --epochs 90");
  header.rank_source = RankSource::rank;
  header.env_world_size = ranks;
  header.hang_ms = 60'000;
  header.clock_source = ClockSource::monotonic_ns;
  header.stacks_enabled = 1;
  return header;
}

struct OneRank {
  Trace trace = {};
  Cursor cursor = {};
  int64_t first_call;
  std::vector<StackRef> stacks;
};

void add_module_and_stacks(OneRank& rank) {
  Text text;
  dl_iterate_phdr(take_first, &text);
  const std::string path = own_path();
  ArenaHeader* at = arena_reserve(rank.trace, ArenaKind::module_, offsetof(ModuleBody, path) + path.size());
  auto* module = static_cast<ModuleBody*>(arena_body(at));
  module->bias = text.bias;
  module->start = text.start;
  module->end = text.end;
  module->path_size = static_cast<uint32_t>(path.size());
  memcpy(module->path, path.data(), path.size());
  arena_commit(at);
  for (size_t i = 0; i < kPaths; i++) {
    at = arena_reserve(rank.trace, ArenaKind::stack, offsetof(StackBody, pc) + kFrames * 8);
    auto* body = static_cast<StackBody*>(arena_body(at));
    body->hash = i + 1;
    body->depth = kFrames;
    for (size_t frame = 0; frame < kFrames; frame++)
      body->pc[frame] = text.start + (text.end - text.start) / (kPaths * kFrames) * (i * kFrames + frame) + 1;
    arena_commit(at);
    rank.stacks.push_back(arena_ref(rank.trace, at));
  }
}

BeginFields fields_of(const OneRank& rank, uint64_t n) {
  constexpr abi::Fn kFunctions[] = {abi::Fn::AllReduce, abi::Fn::AllGather, abi::Fn::ReduceScatter};
  BeginFields f = {};
  f.stamp = static_cast<uint64_t>(rank.first_call + static_cast<int64_t>(n) * kBetweenCalls);
  f.fn = static_cast<uint16_t>(kFunctions[n % 3]);
  f.tid = kTid;
  f.comm = 1;
  f.peer = -1;
  f.count = 1u << (10 + n % 8);
  f.seq = n;
  f.sendbuff = f.recvbuff = 0x7f0000000000 + n % 16 * 0x1000000;
  f.stream = 0x55550000;
  f.native_stack = rank.stacks[n % rank.stacks.size()];
  f.step = n / kCallsPerStep;
  f.dtype = 7;
  f.mark_bits = kHasStep;
  return f;
}

void remember(CommSlot& slot, const BeginFields& f, uint64_t event, uint64_t returned) {
  CallSummary& at = slot.recent[f.seq % kRecentCalls];
  at.seq = f.seq;
  at.stamp = f.stamp;
  at.count = f.count;
  at.fn = f.fn;
  at.dtype = f.dtype;
  at.flags = 0;
  at.redop = f.redop;
  at.peer = f.peer;
  at.native_stack = f.native_stack;
  at.tid = f.tid;
  at.returned.store(returned);
  at.event.store(event + 1);
}

// The host waits for the stream of its last call, and that call has started.
void wait_for_the_last(OneRank& rank, uint64_t calls) {
  const BeginFields last = fields_of(rank, calls - 1);
  uint64_t sequence;
  HostFields f = {};
  f.stamp = last.stamp + static_cast<uint64_t>(2 * kCallTakes);
  f.fn = kStreamSynchronize;
  f.tid = kTid;
  f.object = last.stream;
  f.native_stack = last.native_stack;
  f.step = last.step;
  f.comm_calls = calls;
  f.mark_bits = kHasStep;
  Record* record = reserve(rank.trace, rank.cursor, sequence);
  write_host_begin(record, sequence, f);
  ThreadSlot& thread = rank.trace.threads[0];
  thread.wait_stamp = rank.trace.status->last_call_stamp = f.stamp;
  thread.wait_object = f.object;
  thread.wait_fn = f.fn;
  thread.open_wait = sequence + 1;
  rank.trace.status->host_waits = 1;
  rank.trace.comms[0].coll_completed = calls - 1;
}

// What large jobs have besides; see made_traces.h.
void write_extras(OneRank& rank, const BeginFields& of, uint64_t event) {
  uint64_t sequence;
  DigestFields digest = {};
  digest.stamp = of.stamp + 1;
  digest.fn = of.fn;
  digest.tid = of.tid;
  digest.call = event;
  digest.seq = of.seq;
  digest.comm = of.comm;
  digest.output = true;
  digest.value = of.fn == static_cast<uint16_t>(abi::Fn::ReduceScatter) ? rank.trace.header->opened_mono_ns : of.seq;
  digest.bytes = of.count * 4;
  Record* record = reserve(rank.trace, rank.cursor, sequence);
  write_digest(record, sequence, digest);
  if (of.seq % kCallsPerStep != 0) return;
  BeginFields f = of;
  f.count = 0;
  f.seq = UINT64_MAX;
  f.flags = kZeroCount;
  record = reserve(rank.trace, rank.cursor, sequence);
  write_begin(record, sequence, f);
  end_in_place(record, sequence, f.stamp + 1, 0, 1);
  f.fn = static_cast<uint16_t>(abi::Fn::CommGetAsyncError);
  f.flags = 0;
  f.tid = kTid + 2;
  record = reserve(rank.trace, rank.cursor, sequence);
  write_begin(record, sequence, f);
  end_in_place(record, sequence, f.stamp + 1, 0, 1);
}

void write_calls(OneRank& rank, uint64_t calls, bool extras, uint64_t odd) {
  CommSlot& slot = rank.trace.comms[0];
  for (uint64_t n = 0; n < calls; n++) {
    BeginFields f = fields_of(rank, n);
    if (extras) f.tid = kTid + n % 2;
    f.count += n == odd;
    uint64_t sequence;
    if (n % kCallsPerStep == 0) {
      Record* mark = reserve(rank.trace, rank.cursor, sequence);
      write_mark(mark, sequence, f.stamp, kMarkStep, kTid, f.step, 0, nullptr, 0);
    }
    Record* record = reserve(rank.trace, rank.cursor, sequence);
    write_begin(record, sequence, f);
    const uint64_t end = f.stamp + static_cast<uint64_t>(extras ? kBetweenCalls + 1 : kCallTakes);
    end_in_place(record, sequence, end, 0, 1);
    rank.trace.status->last_call_stamp = end;
    remember(slot, f, sequence, end);
    if (extras) write_extras(rank, f, sequence);
  }
  slot.coll_called = slot.coll_returned = slot.coll_started = slot.coll_completed = calls;
  slot.recent_next = calls;
  Marks& marks = rank.trace.threads[0].marks;
  marks.bits = kHasStep;
  marks.step = (calls - 1) / kCallsPerStep;
}

void describe_comm_and_thread(OneRank& rank, int ranks) {
  ThreadSlot& thread = rank.trace.threads[0];
  strcpy(thread.name, "train");
  thread.state = 'S';
  thread.tid = kTid;
  CommSlot& slot = rank.trace.comms[0];
  slot.id = kCommId;
  slot.nranks = ranks;
  slot.device = 0;
  slot.creator_tid = kTid;
  slot.created_stamp = static_cast<uint64_t>(rank.first_call) - 1'000'000'000;
  slot.ready_stamp = slot.created_stamp + 500'000'000;
  slot.color = INT32_MIN;
  rank.trace.status->states = static_cast<uint32_t>(StatesKnown::watched);
  slot.last_stream = 0x55550000;
  slot.state = static_cast<uint32_t>(CommState::live);
  slot.serial = 1;
  rank.trace.status->comms_created = 1;
}

void beat(OneRank& rank, int64_t mono, int64_t wall) {
  Heartbeat& heartbeat = rank.trace.status->heartbeat;
  heartbeat.threads = 3;
  heartbeat.count = 100;
  heartbeat.clock = {static_cast<uint64_t>(mono), mono, wall};
}

}  // namespace

MadeTraces::MadeTraces(const std::string& scratch, int ranks, uint64_t calls, bool extras, uint64_t odd)
    : ranks_(ranks), calls_(calls), extras_(extras), odd_(odd) {
  other_ = make_image(scratch, false);
  culprits_ = make_image(scratch, true);
}

MadeTraces::Image MadeTraces::make_image(const std::string& scratch, bool is_culprit) {
  OneRank rank;
  const ClockPair now = clocks_now();
  const int64_t last_call = now.mono_ns - kPendingFor;
  rank.first_call = last_call - static_cast<int64_t>(calls_ - 1) * kBetweenCalls;
  FileHeader header = header_of(ranks_);
  header.opened_mono_ns = rank.first_call - 2'000'000'000;
  header.opened_wall_ns = now.wall_ns - (now.mono_ns - header.opened_mono_ns);
  const ClockPair first = {static_cast<uint64_t>(header.opened_mono_ns), header.opened_mono_ns, header.opened_wall_ns};
  const Failure failure = create(rank.trace, scratch.c_str(), header, first, clocks_now, kDefaultRingBytes);
  if (failure.what) give_up(fmt::format("cannot {} in {}: {}", failure.what, scratch, strerror(failure.error)));
  rank.trace.status->second_clock = {first.stamp + 1'000'000, first.mono_ns + 1'000'000, first.wall_ns + 1'000'000};
  add_module_and_stacks(rank);
  describe_comm_and_thread(rank, ranks_);
  write_calls(rank, is_culprit ? calls_ - 1 : calls_, extras_, is_culprit ? odd_ : UINT64_MAX);
  if (!is_culprit) wait_for_the_last(rank, calls_);
  give_block_back(rank.trace, rank.cursor);
  beat(rank, now.mono_ns, now.wall_ns);
  if (!is_culprit) events_ = calls_ + (calls_ + kCallsPerStep - 1) / kCallsPerStep + 1;

  // What was written, page by page; the reserved rest stays a hole.
  Image image;
  const auto* base = reinterpret_cast<const uint8_t*>(rank.trace.header);
  struct stat info;
  if (stat(rank.trace.path, &info) != 0) give_up("the template has gone");
  image.size = static_cast<uint64_t>(info.st_size);
  static const uint8_t kNothing[kPage] = {};
  for (uint64_t at = 0; at + kPage <= image.size; at += kPage) {
    if (memcmp(base + at, kNothing, kPage) == 0) continue;
    if (image.pieces.empty() || image.pieces.back().offset + image.pieces.back().bytes.size() != at)
      image.pieces.push_back({at, {}});
    image.pieces.back().bytes.insert(image.pieces.back().bytes.end(), base + at, base + at + kPage);
  }
  unlink(rank.trace.path);
  unmap(rank.trace);
  return image;
}

uint64_t MadeTraces::bytes_per_rank() const {
  uint64_t bytes = 0;
  for (const Piece& piece : other_.pieces) bytes += piece.bytes.size();
  return bytes;
}

void MadeTraces::write_one(const std::string& folder, Image& image, int rank) const {
  auto* header = reinterpret_cast<FileHeader*>(image.pieces.front().bytes.data());
  const std::string host = fmt::format("node{:05}", rank / kRanksPerHost);
  put_text(header->host, sizeof header->host, host.data(), host.size());
  header->env_rank = rank;
  header->env_local_rank = rank % kRanksPerHost;
  header->pid = 1000 + rank % kRanksPerHost;
  const uint64_t comms = header->areas[kCommArea].offset;
  for (Piece& piece : image.pieces)
    if (comms >= piece.offset && comms < piece.offset + piece.bytes.size())
      reinterpret_cast<CommSlot*>(piece.bytes.data() + (comms - piece.offset))->rank = rank;
  const std::string path = fmt::format("{}/{}.{}.1{}", folder, host, header->pid, kFileSuffix);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  bool whole = fd >= 0 && ftruncate(fd, static_cast<off_t>(image.size)) == 0;
  for (const Piece& piece : image.pieces)
    whole = whole && pwrite(fd, piece.bytes.data(), piece.bytes.size(), static_cast<off_t>(piece.offset)) ==
                         static_cast<ssize_t>(piece.bytes.size());
  if (!whole) give_up(fmt::format("cannot write {}: {}", path, strerror(errno)));
  close(fd);
}

void MadeTraces::write(const std::string& folder) const {
  Image other = other_, culprits = culprits_;
  for (int rank = 0; rank < ranks_; rank++) write_one(folder, rank == culprit() ? culprits : other, rank);
}

}  // namespace lockstep::bench
