// SPDX-License-Identifier: MIT
#include "tools/job/clocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "tools/job/match.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::CommInfo;
using trace::TraceFile;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNotSkew = 2 * kSecond;
constexpr size_t kRows = 64;  // of a communicator, the newest

// One process of a host, as a member of a communicator.
struct Witness {
  const TraceFile* file = nullptr;
  const CommInfo* comm = nullptr;
};
using Witnesses = std::map<std::string, Witness>;  // by host

// Of each communicator the first process of each host that is in it. An id that comes again is another communicator.
std::vector<Witnesses> witnesses_of(const std::vector<Process>& processes) {
  std::map<uint64_t, Witnesses> by_comm;
  for (const Process& process : processes) {
    std::map<uint64_t, int> seen;
    for (const CommInfo& comm : process.file.comms)
      if (comm.id != 0 && seen[comm.id]++ == 0)
        by_comm[comm.id].try_emplace(process.file.header.host, Witness{&process.file, &comm});
  }
  std::vector<Witnesses> several;
  for (auto& [id, hosts] : by_comm)
    if (hosts.size() > 1) several.push_back(std::move(hosts));
  return several;
}

std::map<uint64_t, int64_t> newest_rows(const Witness& witness) {
  std::map<uint64_t, int64_t> rows;
  const std::vector<Call>& calls = witness.file->calls;
  for (auto call = calls.rbegin(); call != calls.rend() && rows.size() < kRows; ++call)
    if (call->comm == witness.comm->serial && is_collective(*call) && call->seq != UINT64_MAX)
      rows.emplace(call->seq, call->called.wall_ns);
  return rows;
}

// By how much the second host's clock is ahead of the first's, at all that both took part in.
void compare(const Witness& a, const Witness& b, std::vector<int64_t>& ahead) {
  if (a.comm->ready.wall_ns > 0 && b.comm->ready.wall_ns > 0)
    ahead.push_back(b.comm->ready.wall_ns - a.comm->ready.wall_ns);
  const std::map<uint64_t, int64_t> rows = newest_rows(a);
  for (const auto& [seq, called] : newest_rows(b))
    if (const auto same = rows.find(seq); same != rows.end() && called > 0 && same->second > 0)
      ahead.push_back(called - same->second);
}

// 0 = nothing that could not be lateness.
int64_t skew_of(std::vector<int64_t> ahead) {
  if (ahead.empty()) return 0;
  for (const int64_t by : ahead)
    if (std::llabs(by) < kNotSkew || (by > 0) != (ahead.front() > 0)) return 0;
  std::nth_element(ahead.begin(), ahead.begin() + static_cast<std::ptrdiff_t>(ahead.size() / 2), ahead.end());
  return ahead[ahead.size() / 2];
}

void shift(trace::Time& time, int64_t by) {
  if (time.wall_ns != 0) time.wall_ns += by;
}

}  // namespace

void shift_wall_times(TraceFile& file, int64_t by) {
  file.header.opened_wall_ns += by;
  for (trace::Time* time : {&file.last_beat, &file.exit_time, &file.supervisor_time, &file.last_call,
                            &file.driver_asked, &file.driver_answered})
    shift(*time, by);
  for (Call& call : file.calls) shift(call.called, by), shift(call.return_time, by);
  for (trace::Digest& digest : file.digests) shift(digest.when, by);
  for (trace::MarkEvent& mark : file.marks) shift(mark.when, by);
  for (trace::ThreadInfo& thread : file.threads) shift(thread.wait_since, by);
  for (CommInfo& comm : file.comms) {
    shift(comm.created, by), shift(comm.ready, by), shift(comm.ended, by);
    for (Call& call : comm.recent) shift(call.called, by), shift(call.return_time, by);
  }
  for (trace::Snapshot& snapshot : file.snapshots) shift(snapshot.when, by);
}

std::vector<std::string> align_clocks(std::vector<Process>& processes) {
  if (processes.empty()) return {};
  const std::string& first = processes.front().file.header.host;
  std::map<std::string, int64_t> ahead{{first, 0}};  // of the first host's clock
  const std::vector<Witnesses> comms = witnesses_of(processes);
  for (bool grew = true; grew;) {
    grew = false;
    std::map<std::string, std::vector<int64_t>> found;  // hosts not known so far, by those that are
    for (const Witnesses& hosts : comms) {
      const auto known =
          std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return ahead.count(host.first); });
      for (const auto& [host, witness] : hosts) {
        if (known == hosts.end() || ahead.count(host)) continue;
        std::vector<int64_t> more;
        compare(known->second, witness, more);
        for (const int64_t by : more) found[host].push_back(by + ahead[known->first]);
      }
    }
    for (const auto& [host, by] : found) {
      ahead[host] = skew_of(by);
      grew = true;
    }
  }
  std::vector<std::string> notes;
  for (const auto& [host, by] : ahead)
    if (by != 0)
      notes.push_back(
          fmt::format("the clock of host {} is {:.0f} s {} that of host {}; its times are read as if it were not", host,
                      static_cast<double>(std::llabs(by)) / 1e9, by > 0 ? "ahead of" : "behind", first));
  for (Process& process : processes)
    if (const auto by = ahead.find(process.file.header.host); by != ahead.end() && by->second != 0)
      shift_wall_times(process.file, -by->second);
  return notes;
}

}  // namespace lockstep
