// SPDX-License-Identifier: MIT
//
// What recording costs: a hooked call against a floor (shim_calls.cc), in each of the ways a call may go; then what
// that is beside real work.
//
// Beside real work, on the host runtime: the part of a step of the demo's training that recording
// takes, and a loop of all-reduces of 1 MiB with the shim and without it, in turn, as a ratio a pair. Of these the 95 %
// interval's upper end counts, so that noise can fail the figure and never pass it.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "interpose/trace/reader.h"
#include "tests/bench/figures.h"
#include "tests/bench/shim_calls.h"

namespace {

using namespace lockstep;

#ifdef DEMO_PROGRAM
double p50(const std::vector<double>& values) { return bench::quantile(values, 0.5); }
#endif

// Runs a program with the shim, or without; gives back what it printed on stdout.
std::string output_of(const std::vector<std::string>& arguments, const std::string& traces) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    close(ends[0]);
    for (const char* name : {"LOCKSTEP", "LOCKSTEP_MODE", "LOCKSTEP_CLOCK", "LOCKSTEP_STACKS", "LOCKSTEP_STATES"})
      unsetenv(name);
    if (!traces.empty()) setenv("LD_PRELOAD", SHIM_LIBRARY, 1), setenv("LOCKSTEP_DIR", traces.c_str(), 1);
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) out.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? out : "";
}

#ifdef DEMO_PROGRAM
// Of all ranks of a run of the demo: records a step, and the median time from one step's mark to the next.
int report_share(double added_ns) {
  char folder[] = "/tmp/lockstep-bench-XXXXXX";
  if (!mkdtemp(folder)) return 2;
  bench::Figures figures;
  if (output_of({DEMO_PROGRAM, "--drop-last"}, folder).empty()) return 2;
  std::vector<double> steps;
  size_t records = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != trace::kFileSuffix) continue;
    const Result<trace::TraceFile> file = trace::read_trace(entry.path());
    if (!file) return 2;
    records += file->calls.size() + file->host_calls.size() + file->marks.size();
    int64_t before = 0;
    for (const trace::MarkEvent& mark : file->marks) {
      if (mark.kind != trace::kMarkStep) continue;
      if (before) steps.push_back(static_cast<double>(mark.when.mono_ns - before));
      before = mark.when.mono_ns;
    }
  }
  std::filesystem::remove_all(folder);
  if (steps.empty()) return 2;
  const double a_step = static_cast<double>(records) / static_cast<double>(steps.size());
  figures.tell("shim.demo.records_a_step", a_step, "");
  figures.tell("shim.demo.step.p50", p50(steps) / 1000, "us");
  figures.tell("shim.demo.added_a_record", added_ns, "ns");
  figures.at_most("shim.demo.share_of_a_step", 100 * added_ns * a_step / p50(steps), 0.5, "%");
  return figures.exit_status();
}

int report_loop() {
  constexpr int kPairs = 64;  // 24 leave an interval of some per cent where the machine has other work, too
  char folder[] = "/tmp/lockstep-bench-XXXXXX";
  if (!mkdtemp(folder)) return 2;
  bench::Figures figures;
  std::vector<double> slower, plain_times;
  for (int pair = 0; pair < kPairs; pair++) {
    double time[2] = {};
    for (int i = 0; i < 2; i++) {
      const bool traced = (pair + i) % 2;  // each goes first in half of the pairs
      const std::string out = output_of({LOOP_PROGRAM}, traced ? folder : "");
      time[traced] = std::strtod(out.c_str(), nullptr);
      if (time[traced] <= 0) return 2;
    }
    plain_times.push_back(time[0]);
    slower.push_back(100 * (time[1] / time[0] - 1));
  }
  std::filesystem::remove_all(folder);
  double mean = 0, square = 0;
  for (const double value : slower) mean += value / kPairs;
  for (const double value : slower) square += (value - mean) * (value - mean) / (kPairs - 1);
  constexpr double kStudent = 1.998;  // two-sided 95 %, 63 degrees of freedom
  figures.tell("shim.loop_1MiB.without_shim.p50", p50(plain_times) / 1000, "us");
  figures.tell("shim.loop_1MiB.slower.mean", mean, "%");
  figures.tell("shim.loop_1MiB.slower.p50", p50(slower), "%");
  figures.at_most("shim.loop_1MiB.slower.upper95", mean + kStudent * std::sqrt(square / kPairs), 3, "%");
  return figures.exit_status();
}
#endif

// One measurement: what is on, and what it is called.
struct Mode {
  const char* name;
  const char* stacks;
  const char* states = nullptr;  // with a CUDA driver in the process that does nothing: watched ("1") or not ("0")
  const char* clock = "tsc";
  const char* way = nullptr;  // of the long way: grouped or digested calls, full mode
};

void set_way(const char* way) {
  setenv("LOCKSTEP_BENCH_WAY", way, 1);
  if (std::strcmp(way, "digested") == 0) setenv("LOCKSTEP_DIGEST", "1", 1);
  if (std::strcmp(way, "full") == 0) setenv("LOCKSTEP_MODE", "full", 1), setenv("LOCKSTEP_FULL_MB", "256", 1);
}

// The measuring process has the shim from its first instruction, so this one starts it.
int start_traced(char* self, const Mode& mode, double* added = nullptr) {
  char folder[] = "/tmp/lockstep-bench-XXXXXX";
  if (!mkdtemp(folder)) return 2;
  const pid_t child = fork();
  if (child == 0) {
    setenv("LD_PRELOAD", SHIM_LIBRARY, 1);
    setenv("LOCKSTEP_DIR", folder, 1);
    setenv("LOCKSTEP_BENCH_FOLDER", folder, 1);
    setenv("LOCKSTEP_BENCH_NAME", mode.name, 1);
    setenv("LOCKSTEP_STACKS", mode.stacks, 1);
    setenv("LOCKSTEP_CLOCK", mode.clock, 1);
    setenv("LOCKSTEP_RING_MB", "160", 1);
    if (mode.states) setenv("LOCKSTEP_BENCH_STATES", mode.states, 1), setenv("LOCKSTEP_STATES", mode.states, 1);
    for (const char* name : {"LOCKSTEP", "LOCKSTEP_MODE", "LOCKSTEP_DIGEST", "LOCKSTEP_HANG_SECONDS"}) unsetenv(name);
    if (mode.way) set_way(mode.way);
    execl("/proc/self/exe", self, static_cast<char*>(nullptr));
    _exit(2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (FILE* file = added ? std::fopen(bench::result_file(folder).c_str(), "r") : nullptr) {
    if (std::fscanf(file, "%lf", added) != 1) status = 2 << 8;
    std::fclose(file);
  }
  std::filesystem::remove(bench::result_file(folder));
  std::filesystem::remove_all(folder);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

}  // namespace

int main(int, char** argv) {
  if (const char* folder = getenv("LOCKSTEP_BENCH_FOLDER")) return bench::measure_calls(folder);
  double added = 0;  // with everything that is on by default
  int worst = 0;
  const auto note = [&](int status) {
    worst = std::max(worst, status);
    std::fflush(stdout);
  };
  note(start_traced(argv[0], {"call", "1"}));
  note(start_traced(argv[0], {"record_only", "0"}));
  note(start_traced(argv[0], {"record_only_clock_gettime", "0", nullptr, "monotonic"}));
  note(start_traced(argv[0], {"without_states", "0", "0"}));
  note(start_traced(argv[0], {"with_states", "0", "1"}));
  note(start_traced(argv[0], {"all_on", "1", "1"}, &added));
  note(start_traced(argv[0], {"full_mode", "0", nullptr, "tsc", "full"}));
  note(start_traced(argv[0], {"grouped", "0", nullptr, "tsc", "grouped"}));
  note(start_traced(argv[0], {"grouped_with_states", "0", "1", "tsc", "grouped"}));
  note(start_traced(argv[0], {"digests", "0", "1", "tsc", "digested"}));
#ifdef DEMO_PROGRAM
  note(report_share(added));
  note(report_loop());
#else
  std::puts("shim.demo, shim.loop_1MiB: skipped, this build has no host runtime");
#endif
  return worst;
}
