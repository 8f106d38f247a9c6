// SPDX-License-Identifier: MIT
#include "tools/job/job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "tools/job/agreed.h"
#include "tools/job/proven.h"
#include "tools/run/processes.h"

namespace lockstep {
namespace fs = std::filesystem;

namespace {

struct Found {
  std::vector<std::string> traces;
  std::vector<std::string> left_out;
  size_t unfinished = 0;
};

bool ends_with(const std::string& text, const char* end) {
  const std::string tail = end;
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

// Sorted, so that nothing depends on the order in which a file system lists its entries.
Result<Found> find_traces(const std::string& folder) {
  std::error_code failed;
  const fs::file_status status = fs::status(folder, failed);
  if (!fs::exists(status))
    return Error{fmt::format("{}: there is no such folder; name the folder `lockstep run` printed", folder)};
  if (!fs::is_directory(status))
    return Error{fmt::format("{}: is a file; name the folder of traces (or use `lockstep show` for one file)", folder)};
  if (access(folder.c_str(), R_OK | X_OK) != 0)
    return Error{fmt::format("{}: may not be read ({}); ask its owner, or run as the user of the job", folder,
                             std::error_code(errno, std::generic_category()).message())};
  Found found;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, failed);
  if (failed) return Error{fmt::format("{}: cannot be listed ({})", folder, failed.message())};
  for (; at != fs::recursive_directory_iterator(); at.increment(failed)) {
    if (failed) {
      found.left_out.push_back(fmt::format("{}: a part of it cannot be listed ({})", folder, failed.message()));
      break;
    }
    const std::string path = at->path().string();
    if (ends_with(path, trace::kFileSuffix)) found.traces.push_back(path);
    if (ends_with(path, trace::kUnfinishedSuffix)) found.unfinished++;
  }
  std::sort(found.traces.begin(), found.traces.end());
  return found;
}

// Calls work(i) for each i below n, by as many threads as there are cores.
template <class Work>
void in_parallel(size_t n, Work work) {
  std::atomic<size_t> next{0};
  const auto some = [&] {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) work(i);
  };
  const size_t most = std::min<size_t>({std::max(1u, std::thread::hardware_concurrency()), 16, n / 8 + 1});
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < most; i++) threads.emplace_back(some);
  } catch (const std::system_error&) {  // a limit of the user's: fewer do it, too
  }
  some();
  for (std::thread& thread : threads) thread.join();
}

// How far all ranks have come.
void read_heads(const std::vector<std::string>& paths, AgreedCalls& agreed) {
  std::vector<std::optional<trace::TraceFile>> heads;
  constexpr size_t kAtOnce = 512;
  for (size_t first = 0; first < paths.size(); first += kAtOnce) {
    heads.assign(std::min(kAtOnce, paths.size() - first), std::nullopt);
    in_parallel(heads.size(), [&](size_t i) {
      Result<trace::TraceFile> head = trace::read_head(paths[first + i]);
      if (head) heads[i] = std::move(*head);
    });
    for (const std::optional<trace::TraceFile>& head : heads)
      if (head) agreed.add_head(*head);
  }
}

struct Loaded {
  std::optional<Process> process;
  std::string why_not;
};

Loaded load_one(const std::string& path) {
  Result<trace::TraceFile> file = trace::read_trace(path);
  if (!file) return {std::nullopt, file.error()};
  if (!file->status_known)  // its end would look like a death that never was
    return {std::nullopt, path + ": cut off before its status block, so it says nothing about its rank; copy it again"};
  Loaded loaded;
  loaded.process.emplace();
  loaded.process->file = std::move(*file);
  count_proven_completions(loaded.process->file);
  loaded.process->liveness = trace::look_alive(loaded.process->file);
  if (loaded.process->liveness == trace::Liveness::alive)
    loaded.process->state = state_of_process(loaded.process->file.header.pid);
  return loaded;
}

// In the order of the paths.
std::vector<Loaded> load_all(const std::vector<std::string>& paths) {
  AgreedCalls agreed;
  read_heads(paths, agreed);
  std::vector<Loaded> loaded;
  do {
    loaded.clear();
    loaded.resize(paths.size());
    in_parallel(paths.size(), [&](size_t i) {
      loaded[i] = load_one(paths[i]);
      if (Process* process = loaded[i].process ? &*loaded[i].process : nullptr)
        process->messages_left_out = agreed.shrink(process->file);
    });
  } while (agreed.keep_what_differs());
  return loaded;
}

}  // namespace

Result<Job> load_job(const std::string& folder) {
  Result<Found> found = find_traces(folder);
  if (!found) return Error{found.error()};
  if (found->traces.empty()) {
    const std::string why = found->unfinished ? fmt::format(", only {} unfinished", found->unfinished) : "";
    return Error{fmt::format("{}: no trace files (*{}) in it{}; start the job with `lockstep run`", folder,
                             trace::kFileSuffix, why)};
  }
  Job job;
  job.folder = folder;
  job.left_out = std::move(found->left_out);
  std::vector<Process> processes;
  for (Loaded& one : load_all(found->traces)) {
    if (one.process) processes.push_back(std::move(*one.process));
    if (!one.why_not.empty()) job.left_out.push_back(std::move(one.why_not));
  }
  if (processes.empty()) {  // the reasons why stand at the end, one a file
    const std::string& why = job.left_out[job.left_out.size() - found->traces.size()];
    return Error{found->traces.size() == 1 ? fmt::format("{}: its only trace file cannot be read: {}", folder, why)
                                           : fmt::format("{}: none of its {} trace files can be read; the first: {}",
                                                         folder, found->traces.size(), why)};
  }
  job.runs = assemble_runs(std::move(processes));
  return job;
}

std::vector<std::string> what_was_left_out(const Job& job, const Run& run) {
  std::vector<std::string> all = job.left_out;
  for (const Process& process : run.processes)
    all.insert(all.end(), process.file.problems.begin(), process.file.problems.end());
  return all;
}

std::string rank_name(const Run& run, size_t rank) {
  const Rank& r = run.ranks[rank];
  if (r.number >= 0) return fmt::format("rank {}", r.number);
  const trace::FileHeader& header = run.processes[r.process].file.header;
  return fmt::format("the process on host {}, pid {}", header.host, header.pid);
}

std::string number_ranges(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] <= numbers[last] + 1) last++;
    if (!text.empty()) text += ",";
    text += std::to_string(numbers[i]);
    if (numbers[last] != numbers[i])
      text += (numbers[last] == numbers[i] + 1 ? "," : "-") + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace lockstep
