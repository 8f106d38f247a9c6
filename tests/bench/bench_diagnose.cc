// SPDX-License-Identifier: MIT
//
// How long a verdict takes, and how much memory: `lockstep diagnose --json` as a user runs it, on the traces of 1 024
// and of 16 384 ranks, its memory with ten times the calls, and `lockstep run` on a job of 64 ranks that hangs for
// real.
//
// Traces of thousands of ranks are made (see made_traces.h), once read so that the page cache is warm, diagnosed three
// times of which the best counts for the time and the worst for the memory, and removed. A verdict that is not the
// right one is a miss whatever its time.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "interpose/trace/format.h"
#include "tests/bench/figures.h"
#include "tests/bench/made_traces.h"

namespace {

using namespace lockstep;
namespace fs = std::filesystem;

constexpr double kMega = 1e6;

double seconds_of(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class TempFolder {
 public:
  TempFolder() {
    const char* tmp = std::getenv("TMPDIR");
    path_ = std::string(tmp && *tmp ? tmp : "/tmp") + "/lockstep-bench.XXXXXX";
    if (mkdtemp(path_.data())) return;
    std::fprintf(stderr, "bench_diagnose: %s: cannot make a folder: %s\n", path_.c_str(), strerror(errno));
    std::exit(2);
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Starts a program in a process group of its own, with its output or its error stream in a pipe.
struct Child {
  pid_t pid = -1;
  int pipe = -1;
};
Child start(const std::vector<std::string>& command, int stream) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    const int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) dup2(fd == stream ? ends[1] : nothing, fd);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

struct Diagnosed {
  double seconds = 0, peak_bytes = 0;
  nlohmann::json report;
};

Diagnosed diagnose(const std::string& folder) {
  const double before = seconds_of(CLOCK_MONOTONIC);
  const Child child = start({LOCKSTEP_PROGRAM, "diagnose", "--json", folder}, STDOUT_FILENO);
  std::string text;
  char buffer[1 << 16];
  for (ssize_t n; (n = read(child.pipe, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(child.pipe);
  int status = 0;
  struct rusage usage = {};
  wait4(child.pid, &status, 0, &usage);
  Diagnosed out;
  out.seconds = seconds_of(CLOCK_MONOTONIC) - before;
  out.peak_bytes = static_cast<double>(usage.ru_maxrss) * 1024;
  out.report = nlohmann::json::parse(text, nullptr, false);
  return out;
}

// Names the one rank and the one call, with its stack beside the majority's.
bool names(const nlohmann::json& report, int culprit, uint64_t seq, size_t victims) {
  if (!report.is_object() || report.value("status", "") != "hung" || report["findings"].empty()) return false;
  const nlohmann::json& first = report["findings"][0];
  return first["kind"] == "missing-call" && first["culprits"] == nlohmann::json::array({culprit}) &&
         first["seq"] == seq && first["victims"].size() == victims && !first["stacks"].empty();
}

// Page cache and disk: what is needed, against what there is.
bool has_room(const std::string& folder, double bytes, const std::string& name) {
  struct statvfs disk;
  const double room = statvfs(folder.c_str(), &disk) == 0 ? static_cast<double>(disk.f_bavail) * disk.f_frsize : 0;
  double memory = 0;
  std::ifstream in("/proc/meminfo");
  for (std::string word; in >> word;)
    if (word == "MemAvailable:" && in >> memory) memory *= 1024;
  if (room > bytes * 1.2 && memory > bytes * 1.2) return true;
  std::printf("%s: skipped: its traces are %.1f GB, and there are %.1f GB of disk in %s and %.1f GB of memory free\n",
              name.c_str(), bytes / 1e9, room / 1e9, folder.c_str(), memory / 1e9);
  return false;
}

void made_traces(bench::Figures& figures, int ranks, double seconds, double bytes) {
  constexpr uint64_t kCalls = 2000;
  const std::string name = "diagnose.ranks" + std::to_string(ranks);
  const TempFolder folder;
  const bench::MadeTraces traces(folder.path(), ranks, kCalls);
  const double size = static_cast<double>(traces.bytes_per_rank());
  if (!has_room(folder.path(), size * ranks, name)) return;
  std::printf("%s: %d files of %.0f kB, %llu records of %zu bytes each, 64 stacks of 20 frames\n", name.c_str(), ranks,
              size / 1000, static_cast<unsigned long long>(traces.events_per_rank()), sizeof(trace::Record));
  traces.write(folder.path());
  double best = 1e9, peak = 0;
  bool right = true;
  for (int i = 0; i < (ranks > 4096 ? 2 : 4); i++) {
    const Diagnosed found = diagnose(folder.path());
    right &= names(found.report, traces.culprit(), traces.missing_seq(), static_cast<size_t>(ranks) - 1);
    if (i > 0) best = std::min(best, found.seconds);  // the first warms the cache
    peak = std::max(peak, found.peak_bytes);
  }
  figures.at_least(name + ".right", right ? 1 : 0, 1, "");
  figures.at_most(name + ".time", best, seconds, "s");
  figures.at_most(name + ".peak_rss", peak / kMega, bytes / kMega, "MB");
}

// Ten times the calls, the same memory but for the one file that each core is reading.
void memory_by_calls(bench::Figures& figures, const std::string& kind, int ranks, bool extras) {
  double peak[2] = {};
  bool right = true;
  for (const int i : {0, 1}) {
    const TempFolder folder;
    const bench::MadeTraces traces(folder.path(), ranks, i == 0 ? 2000 : 20000, extras);
    const double size = static_cast<double>(traces.bytes_per_rank()) * ranks;
    const std::string name = "diagnose.memory." + kind;
    if (!has_room(folder.path(), size, name)) return;
    std::printf("%s: %d files, %.0f MB of traces\n", name.c_str(), ranks, size / kMega);
    traces.write(folder.path());
    const Diagnosed found = diagnose(folder.path());
    right &= names(found.report, traces.culprit(), traces.missing_seq(), static_cast<size_t>(ranks) - 1);
    peak[i] = found.peak_bytes;
  }
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const double files = std::min({16, cores, ranks / 8 + 1});
  figures.at_least("diagnose.memory." + kind + ".right", right ? 1 : 0, 1, "");
  figures.at_most("diagnose.memory." + kind + ".growth", (peak[1] - peak[0]) / kMega, 24 * files, "MB");
  std::printf("diagnose.memory.%s: %.0f MB with 2 000 calls a rank, %.0f MB with 20 000\n", kind.c_str(),
              peak[0] / kMega, peak[1] / kMega);
}

// --- a hang that is going on -----------------------------------------------------------------------------------------

constexpr int kLiveRanks = 64, kLiveCulprit = 21, kLiveCalls = 20;

std::string scene() {
  std::string others = "0-" + std::to_string(kLiveCulprit - 1) + "," + std::to_string(kLiveCulprit + 1) + "-" +
                       std::to_string(kLiveRanks - 1);
  return "title: one of many ranks does not come\nranks: " + std::to_string(kLiveRanks) + "\neach: repeat " +
         std::to_string(kLiveCalls) + " { step; allreduce world 1024; sync }\n" + "rank " + others +
         ": step; allreduce world 1024; sync\n" + "rank " + std::to_string(kLiveCulprit) +
         ": in data_loader_next sleep forever\n" + "expect: status hung; kind missing-call; culprits " +
         std::to_string(kLiveCulprit) + "\n";
}

// When the watchdog fired: the file that asks for snapshots is written by the first rank whose call is overdue.
double fired_at(const std::string& traces) {
  struct stat info;
  if (stat((traces + "/" + trace::kSnapshotRequestFile).c_str(), &info) != 0) return 0;
  return static_cast<double>(info.st_mtim.tv_sec) + static_cast<double>(info.st_mtim.tv_nsec) * 1e-9;
}

struct Live {
  double fired = 0, said = 0;  // of the wall clock, 0 = not
  std::string text;
};

// Until the end of the verdict; the request is looked for all the time, since later ones replace it.
Live watch(const Child& child, const std::string& traces, double deadline) {
  Live live;
  char buffer[1 << 14];
  while (seconds_of(CLOCK_REALTIME) < deadline) {
    struct pollfd one = {child.pipe, POLLIN, 0};
    poll(&one, 1, 5);
    if (live.fired == 0) live.fired = fired_at(traces);
    if (!one.revents) continue;
    const ssize_t n = read(child.pipe, buffer, sizeof buffer);
    if (n <= 0) break;
    live.text.append(buffer, static_cast<size_t>(n));
    if (live.text.find("to see it again") == std::string::npos) continue;
    live.said = seconds_of(CLOCK_REALTIME);
    break;
  }
  return live;
}

void live_hang(bench::Figures& figures, const char* ranks_as, double seconds) {
  const std::string name = std::string("diagnose.live64.") + ranks_as;
  const TempFolder folder;
  const std::string file = folder.path() + "/live.hang", traces = folder.path() + "/traces";
  std::ofstream(file) << scene();
  const Child child = start({LOCKSTEP_PROGRAM, "run", "--dir", traces, "--host", "--hang-seconds", "2",
                             "--kill-on-hang", "--", SCENE_PROGRAM, file, "--ranks-as", ranks_as},
                            STDERR_FILENO);
  const Live live = watch(child, traces, seconds_of(CLOCK_REALTIME) + 100);
  kill(child.pid, SIGTERM);
  for (char rest[4096]; read(child.pipe, rest, sizeof rest) > 0;) continue;
  close(child.pipe);
  waitpid(child.pid, nullptr, 0);
  kill(-child.pid, SIGKILL);
  const auto says = [&](const std::string& words) { return live.text.find(words) != std::string::npos; };
  const bool right = says("lockstep: hung: rank " + std::to_string(kLiveCulprit) + " ") &&
                     says("never made AllReduce #" + std::to_string(kLiveCalls) + " on world");
  if (!right) std::printf("%s: what was said:\n%s\n", name.c_str(), live.text.c_str());
  figures.at_least(name + ".right", right ? 1 : 0, 1, "");
  figures.at_most(name + ".time", live.said > 0 && live.fired > 0 ? live.said - live.fired : 1e6, seconds, "s");
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  const auto is_wanted = [&](const std::string& name) {
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  bench::Figures figures;
  if (is_wanted("ranks1024")) made_traces(figures, 1024, 1.0, 300 * kMega);
  if (is_wanted("ranks16384")) made_traces(figures, 16384, 20.0, 2000 * kMega);
  if (is_wanted("memory")) {
    memory_by_calls(figures, "plain", 256, false);
    memory_by_calls(figures, "extras", 256, true);
    memory_by_calls(figures, "few_ranks", 24, true);
  }
  if (is_wanted("live")) {
    live_hang(figures, "processes", 2.0);
    live_hang(figures, "threads", 2.0);
  }
  return figures.exit_status();
}
