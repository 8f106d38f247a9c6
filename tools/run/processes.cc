// SPDX-License-Identifier: MIT
#include "tools/run/processes.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

namespace lockstep {
namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// The fields of /proc/PID/stat from the third on; the second may hold blanks and parentheses.
std::vector<std::string> stat_fields(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(in, line);
  const size_t close = line.rfind(')');
  std::vector<std::string> fields;
  if (close == std::string::npos) return fields;
  std::istringstream rest(line.substr(close + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

bool is_zombie(pid_t pid) {
  const std::vector<std::string> fields = stat_fields(pid);
  return fields.empty() || fields[0] == "Z" || fields[0] == "X";
}

std::multimap<pid_t, pid_t> children_by_parent() {
  std::multimap<pid_t, pid_t> children;
  std::error_code failed;
  for (fs::directory_iterator at("/proc", failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = static_cast<pid_t>(std::stol(name));
    if (const std::vector<std::string> fields = stat_fields(pid); fields.size() > 1)
      children.emplace(static_cast<pid_t>(std::stol(fields[1])), pid);
  }
  return children;
}

}  // namespace

int open_pidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

std::vector<pid_t> descendants_of(pid_t pid) {
  const std::multimap<pid_t, pid_t> children = children_by_parent();
  std::vector<pid_t> found{pid};
  for (size_t i = 0; i < found.size(); i++) {
    const auto [first, last] = children.equal_range(found[i]);
    for (auto at = first; at != last; ++at)
      if (std::find(found.begin(), found.end(), at->second) == found.end()) found.push_back(at->second);
  }
  found.erase(found.begin());
  return found;
}

void end_processes_below(pid_t pid, pid_t except, int grace_ms) {
  const auto signal_all = [&](int signal) {
    size_t left = 0;
    for (const pid_t child : descendants_of(pid)) {
      if (child == except || is_zombie(child)) continue;
      left++;
      // A stopped process acts on SIGTERM only when it goes on, and then its trace would tell of another job.
      const char state = signal == SIGTERM ? state_of_process(child) : '\0';
      kill(child, state == 'T' || state == 't' ? SIGKILL : signal);
    }
    return left;
  };
  if (signal_all(SIGTERM) == 0) return;
  const auto until = Clock::now() + std::chrono::milliseconds(grace_ms);
  while (Clock::now() < until && signal_all(0) != 0) std::this_thread::sleep_for(20ms);
  for (int tries = 0; tries < 100 && signal_all(SIGKILL) != 0; tries++) std::this_thread::sleep_for(10ms);
}

std::optional<std::string> find_program(const std::string& name) {
  const auto runs = [](const std::string& path) { return access(path.c_str(), X_OK) == 0 && !fs::is_directory(path); };
  if (name.find('/') != std::string::npos) return runs(name) ? std::optional(name) : std::nullopt;
  const char* path = getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (runs(candidate)) return candidate;
  }
  return std::nullopt;
}

char state_of_process(pid_t pid) {
  const std::vector<std::string> fields = stat_fields(pid);
  return fields.empty() ? '\0' : fields[0][0];
}

uint64_t start_ticks_of(pid_t pid) {
  const std::vector<std::string> fields = stat_fields(pid);
  return fields.size() > 19 ? strtoull(fields[19].c_str(), nullptr, 10) : 0;
}

}  // namespace lockstep
