// SPDX-License-Identifier: MIT
#include "tests/tools/hand_made.h"

#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "tools/explain/explain.h"
#include "tools/report/json_schema.h"
#include "tools/report/report.h"

namespace lockstep::test {

using trace::Call;
using trace::CommInfo;
using trace::TraceFile;

HandMadeJob::HandMadeJob(int ranks, std::vector<int> numbers) : numbers_(std::move(numbers)) {
  for (int rank = 0; rank < ranks; rank++) {
    auto file = std::make_unique<TraceFile>();
    memset(&file->header, 0, sizeof file->header);
    file->path = "rank" + std::to_string(number(rank)) + ".lstrace";
    file->header.pid = 4000 + number(rank);
    file->header.env_rank = number(rank);
    file->header.env_world_size = ranks;
    file->header.hang_ms = static_cast<uint32_t>(kThreshold * 1000);
    strcpy(file->header.host, number(rank) % 2 ? "b" : "a");
    strcpy(file->header.run_id, "hand-made");
    const trace::Time opened = time_of(rank);
    file->header.opened_mono_ns = opened.mono_ns;
    file->header.opened_wall_ns = opened.wall_ns;
    file->heartbeat_known = true;
    trace::ThreadInfo main;
    main.tid = static_cast<uint32_t>(file->header.pid);
    file->threads.push_back(main);
    files_.push_back(std::move(file));
  }
}

std::vector<int> HandMadeJob::numbers(const std::vector<int>& ranks) const {
  std::vector<int> out;
  for (const int rank : ranks) out.push_back(number(rank));
  std::sort(out.begin(), out.end());
  return out;
}

// Every process has a monotonic clock of its own, and the hosts disagree a little about the time of day.
trace::Time HandMadeJob::time_of(int rank) const {
  const int64_t ns = static_cast<int64_t>(now_ * 1e9);
  return {ns + 7'000'000'000LL * number(rank), 1'800'000'000'000'000'000LL + ns + 3'000'000LL * (number(rank) % 2)};
}

namespace {
uint64_t id_of(const std::string& name) { return std::hash<std::string>{}(name) | 1; }
}  // namespace

void HandMadeJob::comm(const std::string& name, const std::vector<int>& ranks, trace::CommState state, int nranks) {
  // Ranks in the communicator follow the ranks of the job, whatever those are called in the scene.
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end(), [&](int a, int b) { return number(a) < number(b); });
  for (size_t i = 0; i < sorted.size(); i++) {
    TraceFile& at = file(sorted[i]);
    CommInfo info;
    info.serial = static_cast<uint32_t>(at.comms.size() + 1);
    info.state = state;
    info.id = id_of(name);
    info.rank = static_cast<int>(i);
    info.nranks = nranks ? nranks : static_cast<int>(ranks.size());
    info.name = name == "world" ? "" : name;
    info.created = time_of(sorted[i]);
    info.ready = state == trace::CommState::live ? info.created : trace::Time{};
    info.creator_tid = static_cast<uint32_t>(at.header.pid);
    at.comms.push_back(info);
    at.last_call = time_of(sorted[i]);
  }
}

CommInfo& HandMadeJob::comm_of(int rank, const std::string& comm) {
  for (CommInfo& info : file(rank).comms)
    if (info.id == id_of(comm)) return info;
  throw std::logic_error("rank " + std::to_string(rank) + " is not in " + comm);
}

const CommInfo& HandMadeJob::info(int rank, const std::string& comm) { return comm_of(rank, comm); }

void HandMadeJob::call(int rank, const std::string& comm, CallSpec spec) {
  TraceFile& at = file(rank);
  CommInfo& info = comm_of(rank, comm);
  const bool failed = spec.returned && spec.result != 0 && spec.result != 7;
  Call call;
  call.event = at.events++;
  call.fn = static_cast<uint16_t>(spec.fn);
  call.tid = static_cast<uint32_t>(at.header.pid);
  call.comm = info.serial;
  call.peer = spec.peer;
  call.count = spec.count;
  call.dtype = spec.dtype;
  call.redop = spec.redop;
  call.group = spec.group;
  call.flags = spec.group ? static_cast<uint16_t>(trace::kInGroup) : static_cast<uint16_t>(0);
  call.called = time_of(rank);
  call.returned = spec.returned;
  call.return_time = call.called;
  call.result = spec.result;
  if (at.threads.front().step) call.step = at.threads.front().step;
  if (is_collective(call)) {
    if (spec.count == 0) call.flags |= trace::kZeroCount;
    if (spec.count != 0 && !failed) call.seq = info.coll_called++;
    if (spec.count != 0 && !failed && spec.returned) info.coll_returned++;
  }
  if (is_p2p(call)) info.p2p_called++;
  if (!spec.returned) at.threads.front().open_call = call.event;
  at.calls.push_back(call);
  info.recent.push_back(call);
  if (info.recent.size() > trace::kRecentCalls) info.recent.erase(info.recent.begin());
  at.last_call = call.called;
}

void HandMadeJob::call_all(const std::string& comm, CallSpec spec, int times) {
  for (int i = 0; i < times; i++)
    for (int rank = 0; rank < size(); rank++)
      for (const CommInfo& info : file(rank).comms)
        if (info.id == id_of(comm)) {
          call(rank, comm, spec);
          break;
        }
}

void HandMadeJob::step(int rank, uint64_t step) { file(rank).threads.front().step = step; }

void HandMadeJob::teardown(int rank, const std::string& comm, trace::CommState state) {
  CommInfo& info = comm_of(rank, comm);
  info.state = state;
  info.ended = time_of(rank);
}

void HandMadeJob::sits_in(int rank, const std::string& function) {
  TraceFile& at = file(rank);
  trace::Snapshot shot;
  shot.when = time_of(rank);
  shot.round = 1;
  shot.tid = static_cast<uint32_t>(at.header.pid);
  shot.pcs = {0x1000 + std::hash<std::string>{}(function) % 0x1000};
  at.snapshots.push_back(shot);
  trace::Symbol symbol;
  symbol.pc = shot.pcs[0];
  symbol.function = function;
  at.symbols.push_back(symbol);
}

void HandMadeJob::dies(int rank, int signal) {
  file(rank).exit_kind = trace::ExitKind::fatal_signal;
  file(rank).exit_code = signal;
  file(rank).exit_time = file(rank).last_beat = time_of(rank);
  gone_[rank] = true;
}

void HandMadeJob::vanishes(int rank) {
  file(rank).supervisor = trace::SupervisorState::gone;
  file(rank).supervisor_time = file(rank).last_beat = time_of(rank);
  gone_[rank] = true;
}

void HandMadeJob::exits(int rank, int status) {
  file(rank).exit_kind = trace::ExitKind::exit;
  file(rank).exit_code = status;
  file(rank).exit_time = file(rank).last_beat = time_of(rank);
  gone_[rank] = true;
}

void HandMadeJob::wrap(int rank, size_t keep) {
  std::vector<Call>& calls = file(rank).calls;
  if (calls.size() <= keep) return;
  file(rank).overwritten = calls.size() - keep;
  calls.erase(calls.begin(), calls.end() - static_cast<std::ptrdiff_t>(keep));
}

std::vector<Process> HandMadeJob::processes() const {
  std::vector<Process> out;
  for (int rank = 0; rank < size(); rank++) {
    if (std::find(lost_.begin(), lost_.end(), rank) != lost_.end()) continue;
    Process process;
    process.file = *files_[static_cast<size_t>(rank)];
    process.liveness = gone_.count(rank) ? trace::Liveness::dead : trace::Liveness::alive;
    if (!gone_.count(rank)) process.file.last_beat = time_of(rank);
    out.push_back(std::move(process));
  }
  return out;
}

std::vector<int> Judged::culprits() const {
  std::vector<int> out(first().traceless);
  for (const size_t rank : first().culprits) out.push_back(run->ranks[rank].number);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<int> Judged::victims() const {
  std::vector<int> out;
  for (const size_t rank : first().victims) out.push_back(run->ranks[rank].number);
  std::sort(out.begin(), out.end());
  return out;
}

std::string Judged::comm() const { return first().comm ? table.comms[*first().comm].name : ""; }

namespace {

// Whatever a test is about, its verdict must be one that the schema describes.
void expect_valid(const Judged& judged) {
  static const nlohmann::json schema = nlohmann::json::parse(std::ifstream(DIAGNOSE_SCHEMA));
  const std::string report = report_json({}, *judged.evidence, judged.diagnosis);
  for (const std::string& complaint : check_schema(nlohmann::json::parse(report), schema))
    ADD_FAILURE() << complaint << " in " << report;
}

}  // namespace

Judged judge_job(const HandMadeJob& job, size_t files_left_out) {
  Judged judged;
  judged.run = std::make_unique<Run>(std::move(assemble_runs(job.processes()).back()));
  judged.table = match(*judged.run);
  judged.evidence = std::make_unique<Evidence>(gather(*judged.run, judged.table, {}));
  judged.diagnosis = judge(*judged.run, judged.table, {}, files_left_out);
  Symbolizer symbolizer;
  explain(*judged.evidence, symbolizer, judged.diagnosis);
  expect_valid(judged);
  return judged;
}

HandMadeJob job_of(const std::vector<int>& numbers) {
  HandMadeJob job(static_cast<int>(numbers.size()), numbers);
  std::vector<int> all(numbers.size());
  std::iota(all.begin(), all.end(), 0);
  job.comm("world", all);
  return job;
}

HandMadeJob job_of(int ranks) {
  std::vector<int> numbers(static_cast<size_t>(ranks));
  std::iota(numbers.begin(), numbers.end(), 0);
  return job_of(numbers);
}

std::vector<std::vector<int>> numberings(int n) {
  std::vector<int> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::vector<std::vector<int>> all{numbers, {numbers.rbegin(), numbers.rend()}};
  std::mt19937 random(20260101);
  for (int i = 0; i < 4; i++) {
    std::shuffle(numbers.begin(), numbers.end(), random);
    all.push_back(numbers);
  }
  return all;
}

}  // namespace lockstep::test
