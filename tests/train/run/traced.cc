// SPDX-License-Identifier: MIT

#include "tests/train/run/traced.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "interpose/abi/functions.h"
#include "interpose/trace/reader.h"
#include "tests/demo/process.h"

namespace train::test {
namespace {

using lockstep::trace::CommInfo;
using lockstep::trace::TraceFile;

constexpr uint64_t kStep = 2;

std::string function_of(const lockstep::trace::Call& call, const CommInfo& comm) {
  const auto* function = lockstep::abi::find_function(static_cast<lockstep::abi::Fn>(call.fn));
  if (function == nullptr) return "unknown";
  const std::string name = function->name;
  if (call.peer != comm.rank) return name;
  return name == "Send" ? "Send to itself" : name == "Recv" ? "Recv from itself" : name;
}

// A group that ends with one communicator's calls in it names that one too. What ends a communicator has no stream.
void add_calls(Calls& calls, const TraceFile& file, const CommInfo& comm) {
  constexpr auto group_end = static_cast<uint16_t>(lockstep::abi::Fn::GroupEnd);
  for (const auto& call : file.calls)
    if (call.comm == comm.serial && call.step == kStep && call.fn != group_end && call.stream != 0)
      calls[{comm.name, function_of(call, comm), lockstep::abi::dtype_name(call.dtype)}].add(
          1, static_cast<int64_t>(call.count));
}

void add_streams(std::set<uint64_t>& streams, const TraceFile& file, const CommInfo& comm) {
  for (const auto& call : file.calls)
    if (call.comm == comm.serial && call.step == kStep && call.stream != 0) streams.insert(call.stream);
}

// What each rank has. Ranks are threads, and the thread that made a communicator is the one that made the world's.
template <class Each>
std::vector<Each> by_rank(const TraceFile& file, void (*add)(Each&, const TraceFile&, const CommInfo&)) {
  std::map<uint32_t, size_t> ranks;
  for (const CommInfo& comm : file.comms)
    if (comm.name == "world") ranks[comm.creator_tid] = static_cast<size_t>(comm.rank);
  std::vector<Each> all(ranks.size());
  for (const CommInfo& comm : file.comms)
    if (ranks.count(comm.creator_tid) > 0) add(all.at(ranks[comm.creator_tid]), file, comm);
  return all;
}

std::optional<TraceFile> trace_of(const Words& options, int verdict) {
  const lockstep::test::TemporaryFolder folder;
  Words command = {LOCKSTEP_CLI, "run",          "--host",  "--dir", folder.path("traces"),
                   "--",         LOCKSTEP_TRAIN, "--steps", "2",     "--quiet"};
  command.insert(command.end(), options.begin(), options.end());
  const auto outcome = lockstep::test::run_program(command, std::chrono::seconds(100));
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const auto diagnosis =
      lockstep::test::run_program({LOCKSTEP_CLI, "diagnose", folder.path("traces")}, std::chrono::seconds(60));
  EXPECT_EQ(diagnosis.status, verdict) << diagnosis.out << diagnosis.err;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path("traces"))) {
    if (entry.path().extension() != ".lstrace") continue;
    auto file = lockstep::trace::read_trace(entry.path());
    if (!file) {
      ADD_FAILURE() << file.error();
      continue;
    }
    EXPECT_EQ(file->dropped + file->overwritten + file->torn, 0u);
    return std::move(*file);
  }
  ADD_FAILURE() << "no trace";
  return std::nullopt;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Total& total) {
  return out << total.calls << " calls of " << total.elements << " elements in all";
}

std::vector<Calls> calls_of_ranks(const Words& options, int verdict) {
  const auto file = trace_of(options, verdict);
  return file ? by_rank<Calls>(*file, add_calls) : std::vector<Calls>();
}

std::vector<size_t> streams_of_ranks(const Words& options) {
  std::vector<size_t> counts;
  if (const auto file = trace_of(options, 0))
    for (const auto& streams : by_rank<std::set<uint64_t>>(*file, add_streams)) counts.push_back(streams.size());
  return counts;
}

Calls calls_of_all(const Words& options, int verdict) {
  const std::vector<Calls> ranks = calls_of_ranks(options, verdict);
  for (const Calls& calls : ranks) EXPECT_EQ(calls, ranks.front());
  return ranks.empty() ? Calls{} : ranks.front();
}

}  // namespace train::test
