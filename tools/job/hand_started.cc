// SPDX-License-Identifier: MIT
//
// Ranks that somebody started one by one, in a shell each: nobody gave them a common name, so each made up a run id of
// its own. They are one run where they say so otherwise: one folder, one size of the world, different ranks, alive at
// the same time, and the same communicator, whose id comes from the unique id that they share. Before there is one,
// processes that were opened within minutes of each other are taken together, unless each has a world of its own.

#include <algorithm>
#include <set>

#include "tools/job/life.h"
#include "tools/job/runs.h"

namespace lockstep {
namespace {

constexpr int64_t kForever = INT64_MAX / 2;
constexpr int64_t kByHand = 600'000'000'000;  // so long it may take somebody to start all of them

struct Part {
  RunName name;
  int world = -1;
  std::set<int> numbers;
  std::set<uint64_t> comms, worlds;  // ids; those that span the job
  std::set<std::string> hosts;
  int64_t first_opened = kForever, opened = 0, seen = kForever;  // the newest opening, the first to be gone
};

// nullopt = it may not be joined with others.
std::optional<Part> part_of(const RunName& name, const std::vector<Process>& processes,
                            const std::vector<size_t>& members) {
  if (!is_made_up(name.first)) return std::nullopt;
  Part part;
  part.name = name;
  for (const size_t index : members) {
    const trace::TraceFile& file = processes[index].file;
    if (file.header.env_rank < 0 || file.header.env_world_size < 2) return std::nullopt;
    if (part.world >= 0 && part.world != file.header.env_world_size) return std::nullopt;
    part.world = file.header.env_world_size;
    part.numbers.insert(file.header.env_rank);
    part.hosts.insert(file.header.host);
    for (const trace::CommInfo& comm : file.comms) {
      if (comm.id == 0) continue;
      part.comms.insert(comm.id);
      if (comm.nranks == part.world && comm.parent_id == 0) part.worlds.insert(comm.id);
    }
    part.first_opened = std::min(part.first_opened, file.header.opened_wall_ns);
    part.opened = std::max(part.opened, file.header.opened_wall_ns);
    const bool lives = processes[index].liveness == trace::Liveness::alive;
    const int64_t seen = std::max({file.last_beat.wall_ns, file.last_call.wall_ns, file.exit_time.wall_ns});
    if (!lives) part.seen = std::min(part.seen, seen);
  }
  return part;
}

template <class T>
bool share(const std::set<T>& a, const std::set<T>& b) {
  return std::any_of(a.begin(), a.end(), [&](const T& each) { return b.count(each) != 0; });
}

bool belong_together(const Part& a, const Part& b) {
  if (a.world != b.world || share(a.numbers, b.numbers)) return false;
  const int64_t clocks = a.hosts == b.hosts ? 0 : kClocksOfHosts;
  if (a.opened > b.seen + clocks || b.opened > a.seen + clocks) return false;
  if (share(a.comms, b.comms)) return true;
  if (!a.worlds.empty() && !b.worlds.empty()) return false;
  return std::max(a.opened, b.opened) - std::min(a.first_opened, b.first_opened) < kByHand;
}

void add(const Part& more, Part& to) {
  to.numbers.insert(more.numbers.begin(), more.numbers.end());
  to.comms.insert(more.comms.begin(), more.comms.end());
  to.worlds.insert(more.worlds.begin(), more.worlds.end());
  to.hosts.insert(more.hosts.begin(), more.hosts.end());
  to.first_opened = std::min(to.first_opened, more.first_opened);
  to.opened = std::max(to.opened, more.opened);
  to.seen = std::min(to.seen, more.seen);
}

}  // namespace

// As `lockstep run` and the shim make it up: date, time, and the number of a process.
bool is_made_up(const std::string& run_id) {
  constexpr size_t kDate = 8, kTime = 6;
  const auto digits = [&](size_t from, size_t until) {
    return from < until && std::all_of(run_id.begin() + static_cast<std::ptrdiff_t>(from),
                                       run_id.begin() + static_cast<std::ptrdiff_t>(until),
                                       [](char c) { return c >= '0' && c <= '9'; });
  };
  constexpr size_t kBoth = kDate + 1 + kTime;
  if (run_id.size() <= kBoth + 1) return false;
  const char mark = run_id[kBoth];
  return digits(0, kDate) && run_id[kDate] == '-' && digits(kDate + 1, kBoth) && (mark == '-' || mark == '.') &&
         digits(kBoth + 1, run_id.size());
}

void join_started_by_hand(const std::vector<Process>& processes, ProcessesByRun& runs) {
  std::vector<Part> parts;
  for (const auto& [name, members] : runs)
    if (std::optional<Part> part = part_of(name, processes, members)) parts.push_back(std::move(*part));
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.first_opened < b.first_opened; });
  std::vector<Part> joined;
  for (Part& part : parts) {
    const auto home =
        std::find_if(joined.rbegin(), joined.rend(), [&](const Part& other) { return belong_together(other, part); });
    if (home == joined.rend()) {
      joined.push_back(std::move(part));
      continue;
    }
    std::vector<size_t>& members = runs[home->name];
    const std::vector<size_t>& more = runs[part.name];
    members.insert(members.end(), more.begin(), more.end());
    runs.erase(part.name);
    add(part, *home);
  }
}

}  // namespace lockstep
