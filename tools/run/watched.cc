// SPDX-License-Identifier: MIT
#include "tools/run/watched.h"

#include <fmt/format.h>
#include <poll.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tools/job/life.h"
#include "tools/run/processes.h"
#include "tools/run/snapshot.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kSnapshotTime{4000};

bool has_suffix(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// The same machine and the same numbering of processes as ours: else a pid means somebody else.
bool is_local(const trace::FileHeader& header) {
  static const std::string boot = [] {
    std::ifstream in("/proc/sys/kernel/random/boot_id");
    std::string line;
    std::getline(in, line);
    return line;
  }();
  static const uint64_t pid_namespace = [] {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
  }();
  return boot == header.boot_id && pid_namespace == header.pid_namespace;
}

bool is_readable_now(int fd) {
  struct pollfd one = {fd, POLLIN, 0};
  return poll(&one, 1, 0) == 1;
}

}  // namespace

WatchedTraces::WatchedTraces(std::string folder, pid_t supervisor)
    : folder_(std::move(folder)), supervisor_(supervisor), inotify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  inotify_add_watch(inotify_, folder_.c_str(), IN_MOVED_TO);  // on folders that cannot be watched the beat finds them
}

WatchedTraces::~WatchedTraces() {
  if (inotify_ >= 0) close(inotify_);
  for (auto& [path, watched] : watched_)
    if (watched.pidfd >= 0) close(watched.pidfd);
}

void WatchedTraces::scan() {
  char events[4096];
  while (read(inotify_, events, sizeof events) > 0) continue;
  std::error_code failed;
  for (fs::directory_iterator at(folder_, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string path = at->path().string();
    if (has_suffix(path, trace::kFileSuffix) && !watched_.count(path) && !foreign_.count(path)) consider(path);
  }
}

void WatchedTraces::consider(const std::string& path) {
  Result<trace::Attachment> trace = trace::Attachment::open(path);
  if (!trace || trace->header().supervisor_pid != supervisor_ || !is_local(trace->header())) {
    foreign_.insert(path);
    return;
  }
  Watched watched{std::move(*trace), 0, -1, false};
  watched.pid = watched.trace.header().pid;
  const trace::SupervisorState seen =
      static_cast<trace::SupervisorState>(watched.trace.status().supervisor.state.load());
  if (seen != trace::SupervisorState::none && seen != trace::SupervisorState::watching) {
    foreign_.insert(path);  // of an earlier supervisor with our number
    return;
  }
  watched.trace.set_watching();
  const uint64_t started = start_ticks_of(watched.pid);
  if (started == watched.trace.header().pid_start_ticks) watched.pidfd = open_pidfd(watched.pid);
  watched_.emplace(path, std::move(watched));
}

std::vector<int> WatchedTraces::end_descriptors() const {
  std::vector<int> fds;
  for (const auto& [path, watched] : watched_)
    if (watched.pidfd >= 0) fds.push_back(watched.pidfd);
  return fds;
}

void WatchedTraces::end(Watched& watched, trace::SupervisorState how, int code, uint64_t peak_rss) {
  watched.trace.set_ended(how, code, peak_rss);
  watched.ended = true;
  if (watched.pidfd >= 0) close(watched.pidfd);
  watched.pidfd = -1;
}

void WatchedTraces::note_ends(pid_t child) {
  for (auto& [path, watched] : watched_) {
    if (watched.ended || watched.pid == child) continue;
    if (watched.pidfd < 0) end(watched, trace::SupervisorState::gone, kEndTimeUnknown, 0);
    if (watched.pidfd >= 0 && is_readable_now(watched.pidfd)) end(watched, trace::SupervisorState::gone, 0, 0);
  }
}

void WatchedTraces::note_child(pid_t child, int wait_status, const struct rusage& usage) {
  const bool signalled = WIFSIGNALED(wait_status);
  for (auto& [path, watched] : watched_) {
    if (watched.ended || watched.pid != child) continue;
    end(watched, signalled ? trace::SupervisorState::signalled : trace::SupervisorState::exited,
        signalled ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status), static_cast<uint64_t>(usage.ru_maxrss) * 1024);
  }
}

void WatchedTraces::note_signal(int signal) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t wall = static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  for (auto& [path, watched] : watched_)
    if (!watched.ended) watched.trace.add_text(fmt::format("{}{} {}", kSignalNote, signal, wall));
}

void WatchedTraces::take_snapshots(char why) {
  for (auto& [path, watched] : watched_)
    if (!watched.ended) snapshot(watched, why);
}

namespace {

// Where the stacks of the newest calls lead: those are the ones a verdict shows.
std::vector<uint64_t> call_stacks(const trace::TraceFile& file) {
  std::vector<uint64_t> pcs;
  for (const trace::CommInfo& comm : file.comms) {
    if (comm.recent.empty()) continue;
    for (const uint64_t pc : file.stack(comm.recent.back().stack)) pcs.push_back(pc);
  }
  return pcs;
}

void add_modules(trace::Attachment& trace, trace::TraceFile& file, pid_t pid) {
  for (trace::Module& module : modules_of_process(pid)) {
    const bool known = std::any_of(file.modules.begin(), file.modules.end(), [&](const trace::Module& other) {
      return other.start <= module.start && module.end <= other.end && other.path == module.path;
    });
    if (known) continue;
    trace.add_module(module, trace.status().last_call_stamp.load());
    file.modules.push_back(std::move(module));
  }
}

}  // namespace

void WatchedTraces::snapshot(Watched& watched, char why) {
  const uint32_t round = watched.trace.status().snapshots_taken.load() + 1;
  const std::vector<trace::Snapshot> shots = snapshot_process(watched.pid, round, why, kSnapshotTime);
  std::set<std::pair<uint64_t, bool>> pcs;
  for (const trace::Snapshot& shot : shots) {
    watched.trace.add_snapshot(shot);
    for (size_t i = 0; i < shot.pcs.size(); i++) pcs.insert({shot.pcs[i], i == 0});
  }
  Result<trace::TraceFile> file = trace::read_trace(watched.trace.path());
  if (!file) return;
  add_modules(watched.trace, *file, watched.pid);
  for (const uint64_t pc : call_stacks(*file)) pcs.insert({pc, false});
  std::set<uint64_t> named;
  for (const trace::Symbol& symbol : file->symbols) named.insert(symbol.pc);
  for (const auto& [pc, exact] : pcs) {
    if (!named.insert(pc).second) continue;
    const Frame frame = symbolizer_.name(*file, pc, exact);
    if (frame.function.empty()) continue;
    trace::Symbol symbol;
    symbol.pc = pc;
    symbol.function = frame.function;
    symbol.file = frame.file;
    symbol.line = frame.line;
    watched.trace.add_symbol(symbol);
  }
}

bool WatchedTraces::others_alive() const {
  for (const std::string& path : foreign_) {
    Result<trace::Attachment> trace = trace::Attachment::open(path);
    if (!trace) continue;
    trace::TraceFile head;  // who it is; the events do not matter here
    head.path = path;
    head.header = trace->header();
    if (trace::look_alive(head) == trace::Liveness::alive) return true;
  }
  return false;
}

}  // namespace lockstep
