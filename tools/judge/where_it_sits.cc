// SPDX-License-Identifier: MIT
//
// Where a rank is, by what is on record of its threads: an NCCL call or a host wait that has not come back, else the
// newest snapshot, if it is newer than the rank's last call.

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>

#include "tools/job/lookup.h"
#include "tools/judge/rules.h"

namespace lockstep {

using trace::Call;

namespace {

bool waits_for_device(const std::string& function) {
  const auto has = [&](const char* piece) { return function.find(piece) != std::string::npos; };
  return function.rfind("nccl", 0) == 0 || function.rfind("pnccl", 0) == 0 || has("StreamSynchronize") ||
         has("DeviceSynchronize") || has("EventSynchronize") || has("CtxSynchronize") || has("StreamQuery") ||
         has("EventQuery") || function.rfind("cudaMemcpy", 0) == 0 || function.rfind("cuMemcpy", 0) == 0;
}

}  // namespace

Sits where_it_sits(const Evidence& evidence, size_t rank) {
  const Rank& who = evidence.run.ranks[rank];
  const trace::TraceFile& file = evidence.file(rank);
  if (evidence.stopped(rank) != Stopped::no) return Sits::elsewhere;
  for (const trace::ThreadInfo& thread : file.threads)
    if ((thread.open_call || thread.open_wait) && is_its_thread(who, thread.tid)) return Sits::waiting;
  if (file.snapshots.empty() || file.snapshots.back().when.mono_ns < evidence.worked[rank].mono_ns)
    return Sits::unknown;

  // Threads that talk to NCCL, and the main one; a framework's watchdog that polls events says nothing about the rank.
  std::set<uint32_t> talkers{static_cast<uint32_t>(file.header.pid)};
  for (const Call& call : file.calls) talkers.insert(call.tid);
  std::unordered_map<uint64_t, const std::string*> names;
  for (const trace::Symbol& symbol : file.symbols) names[symbol.pc] = &symbol.function;
  bool any_named = false;
  const uint32_t newest = file.snapshots.back().round;
  // A late supervisor and the process itself may both have answered; what was seen from outside is exact.
  const bool from_outside =
      std::any_of(file.snapshots.begin(), file.snapshots.end(), [&](const trace::Snapshot& snapshot) {
        return snapshot.round == newest && snapshot.source == trace::SnapshotSource::ptrace;
      });
  for (const trace::Snapshot& snapshot : file.snapshots) {
    if (from_outside && snapshot.source != trace::SnapshotSource::ptrace) continue;
    if (snapshot.round != newest || !is_its_thread(who, snapshot.tid) || !talkers.count(snapshot.tid)) continue;
    for (const uint64_t pc : snapshot.pcs) {
      const auto name = names.find(pc);
      if (name == names.end() || name->second->empty()) continue;
      any_named = true;
      if (waits_for_device(*name->second)) return Sits::waiting;
    }
  }
  return any_named ? Sits::elsewhere : Sits::unknown;
}

bool is_stuck(const Evidence& evidence, size_t rank) {
  return evidence.quiet(rank) >= evidence.threshold_ns && where_it_sits(evidence, rank) == Sits::waiting;
}

}  // namespace lockstep
