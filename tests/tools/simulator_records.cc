// SPDX-License-Identifier: MIT
//
// What the traces of a simulated job hold: how a file begins, what of it may be lost, one file for ranks that are
// threads, and values planted in it that no run of calls brings about (settings, marks, digests).

#include <string.h>

#include <algorithm>
#include <map>

#include "tests/tools/simulator_machine.h"
#include "tools/job/match.h"

namespace lockstep::test {

uint64_t sim_comm_id(int comm) { return mixed(77, static_cast<uint64_t>(comm)) | 1; }

TraceFile new_file(int rank, int ranks) {
  TraceFile file;
  memset(&file.header, 0, sizeof file.header);
  file.path = "rank" + std::to_string(rank) + ".lstrace";
  file.header.pid = 100 + rank;
  file.header.env_rank = rank;
  file.header.env_world_size = ranks;
  file.header.hang_ms = static_cast<uint32_t>(kSimThreshold * 1000);
  strcpy(file.header.host, rank % 3 == 0 ? "a" : rank % 3 == 1 ? "b" : "c");
  strcpy(file.header.run_id, "simulated");
  file.heartbeat_known = file.status_known = true;
  file.threads.emplace_back();
  file.threads.front().tid = static_cast<uint32_t>(file.header.pid);
  return file;
}

void add_snapshot(TraceFile& file, const char* function) {
  trace::Snapshot shot;
  shot.when = file.last_beat;
  shot.round = 1;
  shot.tid = file.threads.front().tid;
  shot.pcs = {0x1000 + strlen(function)};
  file.snapshots.push_back(shot);
  trace::Symbol symbol;
  symbol.pc = shot.pcs[0];
  symbol.function = function;
  file.symbols.push_back(symbol);
}

void lose(TraceFile& file, const Loss& loss) {
  if (loss.snapshots) file.snapshots.clear();
  if (loss.device_states)
    for (CommInfo& each : file.comms)
      each.coll_started.reset(), each.coll_completed.reset(), each.p2p_completed.reset();
  if (loss.ring && file.calls.size() > loss.ring) {
    file.overwritten = file.calls.size() - loss.ring;
    file.calls.erase(file.calls.begin(), file.calls.end() - static_cast<std::ptrdiff_t>(loss.ring));
  }
}

TraceFile merged(std::vector<TraceFile>& files, bool ended) {
  const int ranks = static_cast<int>(files.size());
  const auto file = [&](int rank) -> TraceFile& { return files[static_cast<size_t>(rank)]; };
  TraceFile all = file(0);
  all.header.env_rank = all.header.env_world_size = -1;
  all.comms.clear(), all.calls.clear(), all.threads.clear(), all.snapshots.clear();
  all.exit_time = {};
  struct Placed {
    int rank;
    size_t index;
  };
  std::vector<Placed> order;
  for (int rank = 0; rank < ranks; rank++)
    for (size_t i = 0; i < file(rank).calls.size(); i++) order.push_back({rank, i});
  const auto called = [&](const Placed& at) { return file(at.rank).calls[at.index].called.mono_ns; };
  std::stable_sort(order.begin(), order.end(), [&](const Placed& a, const Placed& b) { return called(a) < called(b); });
  std::vector<std::vector<uint64_t>> event_of(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; rank++) event_of[static_cast<size_t>(rank)].resize(file(rank).calls.size());
  for (size_t i = 0; i < order.size(); i++) event_of[static_cast<size_t>(order[i].rank)][order[i].index] = i;
  const auto serial_of = [](int rank, uint32_t serial) {
    return serial ? serial + static_cast<uint32_t>(rank) * 1000 : 0;
  };
  const auto renumber = [&](int rank, Call& call) {
    call.event = event_of[static_cast<size_t>(rank)][call.event];
    call.comm = serial_of(rank, call.comm);
    call.new_comm = serial_of(rank, call.new_comm);
    call.stream += static_cast<uint64_t>(rank) * 100;
    if (call.group) call.group += static_cast<uint32_t>(rank) * 100000;
  };
  for (const Placed& at : order) {
    all.calls.push_back(file(at.rank).calls[at.index]);
    renumber(at.rank, all.calls.back());
  }
  for (int rank = 0; rank < ranks; rank++) {
    TraceFile& own = file(rank);
    for (CommInfo& comm : own.comms) {
      comm.serial = serial_of(rank, comm.serial);
      comm.parent_serial = serial_of(rank, comm.parent_serial);
      for (Call& call : comm.recent) renumber(rank, call);
      all.comms.push_back(std::move(comm));
    }
    trace::ThreadInfo thread = own.threads.front();
    if (thread.open_call) thread.open_call = event_of[static_cast<size_t>(rank)][*thread.open_call];
    all.threads.push_back(std::move(thread));
    for (trace::Snapshot& shot : own.snapshots) all.snapshots.push_back(std::move(shot));
    if (rank) all.symbols.insert(all.symbols.end(), own.symbols.begin(), own.symbols.end());
    if (own.exit_time.mono_ns > all.exit_time.mono_ns)
      all.exit_kind = own.exit_kind, all.exit_code = own.exit_code, all.exit_time = own.exit_time;
    if (own.last_call.mono_ns > all.last_call.mono_ns) all.last_call = own.last_call;
    if (own.last_beat.mono_ns > all.last_beat.mono_ns) all.last_beat = own.last_beat;
  }
  all.events = all.calls.size();
  if (!ended) all.exit_kind = {}, all.exit_code = 0, all.exit_time = {};
  return all;
}

// --- what is planted

namespace {

CommInfo* info_of(TraceFile& file, int comm) {
  const auto found = std::find_if(file.comms.begin(), file.comms.end(),
                                  [&](const CommInfo& info) { return info.id == sim_comm_id(comm); });
  return found == file.comms.end() ? nullptr : &*found;
}

bool is_collective_of(const Call& call, const CommInfo& comm) {
  return call.comm == comm.serial && is_collective(call) && call.count > 0 && call.returned &&
         !(call.flags & trace::kInGroup);
}

// Two calls on one communicator that followed each other are now of two threads, and overlap.
bool overlap_two_calls(TraceFile& file, const CommInfo& comm) {
  for (size_t i = 0; i + 1 < file.calls.size(); i++) {
    Call& first = file.calls[i];
    Call& second = file.calls[i + 1];
    if (!is_collective_of(first, comm) || !is_collective_of(second, comm)) continue;
    first.return_time.mono_ns = second.called.mono_ns + 1000;
    second.tid = first.tid + 5000;
    trace::ThreadInfo other;
    other.tid = second.tid;
    file.threads.push_back(other);
    return true;
  }
  return false;
}

void set_environment(const Planted& what, std::vector<TraceFile>& files) {
  for (size_t rank = 0; rank < files.size(); rank++) {
    const bool odd = static_cast<int>(rank) == what.rank;
    files[rank].texts.push_back(std::string("environment\nNCCL_DEBUG=") + std::to_string(rank) +
                                "\nNCCL_ALGO=" + (odd ? "Tree" : "Ring") + "\n");
  }
}

// Four steps, in each of which every rank marks a sample of its own; in the last the two mark the same.
bool mark_samples(const Planted& what, std::vector<TraceFile>& files) {
  for (size_t rank = 0; rank < files.size(); rank++) {
    TraceFile& file = files[rank];
    CommInfo* comm = info_of(file, what.comm);
    if (!comm && (static_cast<int>(rank) == what.rank || static_cast<int>(rank) == what.other)) return false;
    if (comm) comm->name = "dp";
    const auto mark = [&](uint32_t kind, uint64_t value, std::string text) {
      trace::MarkEvent made;
      made.tid = file.threads.front().tid;
      made.kind = kind, made.value = value, made.text = std::move(text);
      file.marks.push_back(std::move(made));
    };
    for (uint64_t step = 0; step < 4; step++) {
      const bool shared = step == 3 && static_cast<int>(rank) == what.other;
      mark(trace::kMarkStep, step, "");
      mark(trace::kMarkSample, 0,
           "shard" + std::to_string(shared ? what.rank : static_cast<int>(rank)) + ":" + std::to_string(step));
    }
  }
  return true;
}

// Digests of all results that are the same on all ranks; from one row on the rank's are different.
bool add_digests(const Planted& what, std::vector<TraceFile>& files) {
  bool any = false;
  for (size_t rank = 0; rank < files.size(); rank++) {
    TraceFile& file = files[rank];
    CommInfo* comm = info_of(file, what.comm);
    if (!comm) continue;
    for (const Call& call : file.calls) {
      if (call.comm != comm->serial || !is_collective(call) || !has_one_result(call.fn) || call.count == 0) continue;
      if (call.seq >= comm->coll_completed.value_or(0)) continue;
      trace::Digest digest;
      digest.call = call.event, digest.fn = call.fn, digest.comm = call.comm, digest.seq = call.seq;
      digest.output = true, digest.bytes = call.count, digest.value = 1000 + call.seq;
      if (static_cast<int>(rank) == what.rank) digest.value = 1, any = true;
      file.digests.push_back(digest);
    }
  }
  return any;
}

}  // namespace

bool plant(const Planted& what, std::vector<TraceFile>& files) {
  TraceFile& odd = files[static_cast<size_t>(what.rank)];
  switch (what.what) {
    case Planted::What::two_threads: {
      const CommInfo* comm = info_of(odd, what.comm);
      return comm && overlap_two_calls(odd, *comm);
    }
    case Planted::What::environment:
      set_environment(what, files);
      return true;
    case Planted::What::samples:
      return mark_samples(what, files);
    case Planted::What::digests:
      return add_digests(what, files);
    case Planted::What::devices:
      for (size_t rank = 0; rank < files.size(); rank++)
        for (CommInfo& comm : files[rank].comms)
          comm.device = static_cast<int>(rank) == what.other ? what.rank : static_cast<int>(rank);
      return true;
  }
  return false;
}

}  // namespace lockstep::test
