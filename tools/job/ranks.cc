// SPDX-License-Identifier: MIT
//
// Who is which rank. Works on values only, so that tests can build any job by hand.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "interpose/abi/functions.h"
#include "tools/job/clocks.h"
#include "tools/job/job.h"
#include "tools/job/runs.h"

namespace lockstep {
namespace {

using trace::CommInfo;
using trace::TraceFile;

// --- one process: how many ranks does it hold?
// ---------------------------------------------------------------------------

// The communicator in which this process has several ranks, or 0: the largest such, then the first made.
uint64_t shared_comm(const TraceFile& file) {
  std::map<uint64_t, std::set<int>> ranks_in;
  std::map<uint64_t, int> size;
  for (const CommInfo& comm : file.comms) {
    if (comm.id == 0 || comm.rank < 0) continue;
    ranks_in[comm.id].insert(comm.rank);
    size[comm.id] = std::max(size[comm.id], comm.nranks);
  }
  uint64_t best = 0;
  for (const CommInfo& comm : file.comms)
    if (ranks_in.count(comm.id) && ranks_in[comm.id].size() > 1 && (best == 0 || size[comm.id] > size[best]))
      best = comm.id;
  return best;
}

// Rank in the largest communicator of those listed; -1 = in none.
int rank_in_largest(const TraceFile& file, const std::vector<uint32_t>& serials) {
  const CommInfo* largest = nullptr;
  for (const CommInfo& comm : file.comms) {
    if (comm.rank < 0 || std::find(serials.begin(), serials.end(), comm.serial) == serials.end()) continue;
    if (!largest || comm.nranks > largest->nranks) largest = &comm;
  }
  return largest ? largest->rank : -1;
}

Rank whole_process(const Process& process, size_t index) {
  Rank rank;
  rank.process = index;
  for (const CommInfo& comm : process.file.comms) rank.comms.push_back(comm.serial);
  rank.number =
      process.file.header.env_rank >= 0 ? process.file.header.env_rank : rank_in_largest(process.file, rank.comms);
  return rank;
}

// The rank of this process that owns a communicator other than the shared one: whose parent it came from, whose thread
// made it (when that thread made one rank's communicator only), or whose device it is on.
Rank* owner_of(const CommInfo& comm, std::vector<Rank>& ranks, const std::map<uint32_t, size_t>& by_serial,
               const std::map<uint32_t, std::set<size_t>>& by_thread,
               const std::map<int, std::set<size_t>>& by_device) {
  if (const auto parent = by_serial.find(comm.parent_serial); comm.parent_serial && parent != by_serial.end())
    return &ranks[parent->second];
  if (const auto thread = by_thread.find(comm.creator_tid); thread != by_thread.end() && thread->second.size() == 1)
    return &ranks[*thread->second.begin()];
  if (const auto device = by_device.find(comm.device); device != by_device.end() && device->second.size() == 1)
    return &ranks[*device->second.begin()];
  return nullptr;
}

std::vector<Rank> ranks_of(const Process& process, size_t index, std::vector<std::string>& notes) {
  const uint64_t shared = shared_comm(process.file);
  if (shared == 0) return {whole_process(process, index)};

  std::vector<Rank> ranks;
  std::map<int, size_t> by_number;
  std::map<uint32_t, size_t> by_serial;
  std::map<uint32_t, std::set<size_t>> by_thread;
  std::map<int, std::set<size_t>> by_device;
  const auto give = [&](const CommInfo& comm, size_t owner) {
    ranks[owner].comms.push_back(comm.serial);
    by_serial[comm.serial] = owner;
  };
  for (const CommInfo& comm : process.file.comms) {
    if (comm.id != shared || comm.rank < 0) continue;
    const auto [place, is_new] = by_number.try_emplace(comm.rank, ranks.size());
    if (is_new) {
      ranks.emplace_back();
      ranks.back().number = comm.rank;
      ranks.back().process = index;
    }
    give(comm, place->second);
    by_thread[comm.creator_tid].insert(place->second);
    if (comm.device >= 0) by_device[comm.device].insert(place->second);
  }
  for (const CommInfo& comm : process.file.comms) {
    if (by_serial.count(comm.serial)) continue;
    Rank* owner = owner_of(comm, ranks, by_serial, by_thread, by_device);
    if (owner) {
      give(comm, static_cast<size_t>(owner - ranks.data()));
    } else {
      notes.push_back(
          fmt::format("{}: cannot tell which of the process's {} ranks owns communicator {}; it is left out",
                      process.file.path, ranks.size(), comm.serial));
    }
  }
  // A thread is a rank's own when it called on that rank's communicators only.
  std::map<uint32_t, std::set<size_t>> callers;
  for (const trace::Call& call : process.file.calls)
    if (const auto owner = by_serial.find(call.comm); call.comm && owner != by_serial.end())
      callers[call.tid].insert(owner->second);
  for (const auto& [tid, owners] : by_thread) callers[tid].insert(owners.begin(), owners.end());
  for (const auto& [tid, owners] : callers)
    if (owners.size() == 1) ranks[*owners.begin()].tids.push_back(tid);
  return ranks;
}

// --- one folder: how many runs?
// --------------------------------------------------------------------------------------------

// A set of processes linked by communicators, to be kept together.
struct Island {
  std::vector<size_t> processes;
  std::set<int> numbers;  // ranks claimed by processes that have communicators
  int64_t opened = 0;
};

std::vector<Island> islands_of(const std::vector<Process>& processes, const std::vector<size_t>& members) {
  std::map<uint64_t, size_t> island_by_comm;
  std::vector<size_t> root(members.size());
  const auto find = [&](size_t at) {
    while (root[at] != at) at = root[at];
    return at;
  };
  for (size_t i = 0; i < members.size(); i++) {
    root[i] = i;
    for (const CommInfo& comm : processes[members[i]].file.comms) {
      for (const uint64_t id : {comm.id, comm.parent_id}) {
        if (id == 0) continue;
        const auto [place, is_new] = island_by_comm.try_emplace(id, i);
        if (!is_new) root[find(i)] = find(place->second);
      }
    }
  }
  std::map<size_t, Island> islands;
  for (size_t i = 0; i < members.size(); i++) {
    const Process& process = processes[members[i]];
    Island& island = islands[find(i)];
    const int64_t opened = process.file.header.opened_wall_ns;
    island.opened = island.processes.empty() ? opened : std::min(island.opened, opened);
    island.processes.push_back(members[i]);
    if (process.file.comms.empty()) continue;
    std::vector<std::string> ignored;
    for (const Rank& rank : ranks_of(process, 0, ignored))
      if (rank.number >= 0) island.numbers.insert(rank.number);
  }
  std::vector<Island> sorted;
  for (auto& [at, island] : islands) sorted.push_back(std::move(island));
  std::sort(sorted.begin(), sorted.end(), [](const Island& a, const Island& b) {
    return a.opened != b.opened ? a.opened < b.opened : a.processes < b.processes;
  });
  return sorted;
}

bool overlap(const std::set<int>& a, const std::set<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int number) { return b.count(number) != 0; });
}

// Islands whose ranks do not collide are one run; a collision opens a new one.
std::vector<std::vector<size_t>> split_by_collision(const std::vector<Process>& processes,
                                                    const std::vector<size_t>& members) {
  std::vector<std::vector<size_t>> runs;
  std::vector<std::set<int>> numbers;
  for (const Island& island : islands_of(processes, members)) {
    if (runs.empty() || overlap(numbers.back(), island.numbers)) {
      runs.emplace_back();
      numbers.emplace_back();
    }
    runs.back().insert(runs.back().end(), island.processes.begin(), island.processes.end());
    numbers.back().insert(island.numbers.begin(), island.numbers.end());
  }
  return runs;
}

// --- one run: its ranks
// --------------------------------------------------------------------------------------------------

// Of two claims to one rank, the better: it has communicators, it lives, it is newer.
bool better_claim(const Run& run, const Rank& a, const Rank& b) {
  const Process& pa = run.processes[a.process];
  const Process& pb = run.processes[b.process];
  if (pa.file.comms.empty() != pb.file.comms.empty()) return pb.file.comms.empty();
  const bool a_lives = pa.liveness == trace::Liveness::alive, b_lives = pb.liveness == trace::Liveness::alive;
  if (a_lives != b_lives) return a_lives;
  return pa.file.header.opened_wall_ns > pb.file.header.opened_wall_ns;
}

void settle_clashes(Run& run) {
  std::vector<Rank> settled;
  std::map<int, size_t> by_number;
  for (Rank& rank : run.ranks) {
    if (rank.number < 0 || by_number.try_emplace(rank.number, settled.size()).second) {
      settled.push_back(std::move(rank));
      continue;
    }
    Rank* const other = &settled[by_number[rank.number]];
    Rank loser = *other;
    if (better_claim(run, rank, *other)) {
      *other = rank;
    } else {
      loser = rank;
    }
    const TraceFile& out = run.processes[loser.process].file;
    if (out.comms.empty()) continue;  // a helper process that inherited the environment: no rival
    run.notes.push_back(
        fmt::format("rank {} is claimed by two processes; pid {} (host {}) is used, pid {} (host {}, {}) is not",
                    rank.number, run.processes[other->process].file.header.pid,
                    run.processes[other->process].file.header.host, out.header.pid, out.header.host, out.path));
  }
  run.ranks = std::move(settled);
}

// The launcher's word, else the size of the largest communicator, else the ranks seen.
int world_size_of(const Run& run) {
  int from_env = -1, from_comms = -1, seen = -1;
  for (const Rank& rank : run.ranks) {
    const TraceFile& file = run.processes[rank.process].file;
    if (rank.number < 0) continue;
    from_env = std::max(from_env, file.header.env_world_size);
    for (const CommInfo& comm : file.comms) from_comms = std::max(from_comms, comm.nranks);
    seen = std::max(seen, rank.number + 1);
  }
  const int told = from_env > 0 ? from_env : from_comms;
  return told > 0 ? std::max(told, seen) : -1;
}

// A process that has no number although exactly one number is free must be that rank.
void adopt_last_number(Run& run) {
  const auto is_unnamed = [&](const Rank& rank) {
    return rank.number < 0 &&
           (!run.processes[rank.process].file.comms.empty() || !run.processes[rank.process].file.calls.empty());
  };
  if (run.missing.size() != 1 || std::count_if(run.ranks.begin(), run.ranks.end(), is_unnamed) != 1) return;
  Rank& rank = *std::find_if(run.ranks.begin(), run.ranks.end(), is_unnamed);
  rank.number = run.missing.front();
  run.missing.clear();
  run.notes.push_back(fmt::format("pid {} does not say its rank; it is taken for rank {}, the only one without a trace",
                                  run.processes[rank.process].file.header.pid, rank.number));
}

void find_missing(Run& run) {
  run.world_size = world_size_of(run);
  std::set<int> present;
  for (const Rank& rank : run.ranks) present.insert(rank.number);
  for (int number = 0; number < run.world_size; number++)
    if (!present.count(number)) run.missing.push_back(number);
}

void sort_ranks(Run& run) {
  std::sort(run.ranks.begin(), run.ranks.end(), [&](const Rank& a, const Rank& b) {
    if ((a.number < 0) != (b.number < 0)) return b.number < 0;
    if (a.number != b.number) return a.number < b.number;
    return run.processes[a.process].file.header.pid < run.processes[b.process].file.header.pid;
  });
}

// That several run ids were taken for one run.
void note_names(Run& run) {
  std::set<std::string> names;
  for (const Process& process : run.processes) names.insert(process.file.header.run_id);
  if (names.size() < 2) return;
  run.notes.push_back(
      fmt::format("the ranks were started one by one, with {} run ids; they are taken for one run, since they share "
                  "a folder, the size of the world and the time; one LOCKSTEP_RUN_ID for all of them says so for sure",
                  names.size()));
}

Run make_run(std::vector<Process> processes) {
  Run run;
  run.notes = align_clocks(processes);
  run.processes = std::move(processes);
  run.id = run.processes.front().file.header.run_id;
  run.restart = run.processes.front().file.header.restart_count;
  run.opened_wall_ns = run.processes.front().file.header.opened_wall_ns;
  for (size_t i = 0; i < run.processes.size(); i++) {
    run.opened_wall_ns = std::min(run.opened_wall_ns, run.processes[i].file.header.opened_wall_ns);
    for (Rank& rank : ranks_of(run.processes[i], i, run.notes)) run.ranks.push_back(std::move(rank));
  }
  note_names(run);
  settle_clashes(run);
  find_missing(run);
  adopt_last_number(run);
  sort_ranks(run);
  return run;
}

}  // namespace

std::vector<Run> assemble_runs(std::vector<Process> processes) {
  ProcessesByRun named;
  for (size_t i = 0; i < processes.size(); i++)
    named[{processes[i].file.header.run_id, processes[i].file.header.restart_count}].push_back(i);
  join_started_by_hand(processes, named);

  std::vector<Run> runs;
  for (const auto& [name, members] : named) {
    for (const std::vector<size_t>& together : split_by_collision(processes, members)) {
      std::vector<Process> taken;
      for (const size_t index : together) taken.push_back(std::move(processes[index]));
      runs.push_back(make_run(std::move(taken)));
    }
  }
  // Of one job the later restart is newer whatever the clocks of its hosts say.
  std::map<std::string, int64_t> newest;
  for (const Run& run : runs) newest[run.id] = std::max(newest[run.id], run.opened_wall_ns);
  std::stable_sort(runs.begin(), runs.end(), [&](const Run& a, const Run& b) {
    const auto key = [&](const Run& run) { return std::tie(newest[run.id], run.id, run.restart, run.opened_wall_ns); };
    return key(a) < key(b);
  });
  return runs;
}

}  // namespace lockstep
