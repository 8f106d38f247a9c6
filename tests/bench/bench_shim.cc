// SPDX-License-Identifier: MIT
//
// What a hooked call costs, against a floor measured beside it in the same run.
//
// The floor is what any tracer must pay that has a time, a stack and a record which outlives the process: one
// clock_gettime, one store of 128 bytes into a mapped file, one warm unw_backtrace at the same depth. Calls and floors
// alternate, so that a slow moment of the machine hits both. The libnccl underneath returns at once, without a locked
// instruction, which would wait for all stores of the shim and be charged to it.
//
// A training loop reaches the same call along many paths, so 64 paths of about 20 frames are taken in turn. They differ
// only far from the call: a tracer that looked at the top of the stack alone would be fast here and wrong. After the
// run the trace is read and every stack is compared with the one that glibc's own unwinder saw on that path.
//
// Then what that is beside real work, on the host runtime: the part of a step of the demo's training that recording
// takes, and a loop of all-reduces of 1 MiB with the shim and without it, in turn, as a ratio a pair. Of these the 95 %
// interval's upper end counts, so that noise can fail the figure and never pass it.

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "interpose/abi/nccl.h"
#include "interpose/shim/clock.h"
#include "interpose/trace/reader.h"
#include "tests/bench/figures.h"

namespace {

using namespace lockstep;

constexpr uint64_t kPaths = 64;
constexpr int kLevels = 16;           // frames between the loop and the call
constexpr uint64_t kCalls = 1000000;  // records of 128 bytes: within a ring of 160 MiB
constexpr uint64_t kWarmUp = 20000;
constexpr uint64_t kFirstCount = 1u << 20;  // counts tell the path; the fake gives small ones a meaning

enum class What { timer, bare, stamps, floor, hooked, expect };

struct Bench {
  ncclComm_t comm = nullptr;
  ncclResult_t (*bare)(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) = nullptr;
  int (*unw_backtrace)(void**, int) = nullptr;
  char* ring = nullptr;
  uint64_t ring_records = 0, next = 0;
  std::vector<std::vector<void*>> expected{kPaths};
  double ticks_per_ns = 1;
  bool stacks = true;
  bool tsc = true;
} state;

inline uint64_t ticks() {
#if defined(__x86_64__)
  unsigned aux;
  _mm_lfence();
  const uint64_t now = __rdtscp(&aux);
  _mm_lfence();
  return now;
#else
  return static_cast<uint64_t>(shim::nanoseconds(CLOCK_MONOTONIC));
#endif
}

struct alignas(64) Plain {
  uint64_t words[16];
};

inline void pay_floor(uint64_t path) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  void* frames[64];
  frames[0] = nullptr;
  const int depth = state.stacks ? state.unw_backtrace(frames, 64) : 0;
  const uint64_t n = state.next++;
  auto* to = reinterpret_cast<Plain*>(state.ring) + n % state.ring_records;
  Plain record = {};
  record.words[0] = n;
  record.words[1] = static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
  record.words[2] = path;
  record.words[3] = static_cast<uint64_t>(depth);
  record.words[4] = reinterpret_cast<uint64_t>(frames[0]);
  *to = record;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// The one place all calls are made from.
__attribute__((noinline)) uint64_t leaf(uint64_t path, What what) {
  char buffer[8];
  const size_t count = kFirstCount + path;
  uint64_t before = ticks(), after = before;
  switch (what) {
    case What::timer:
      after = ticks();
      break;
    case What::bare:
      state.bare(buffer, buffer, count, ncclFloat32, ncclSum, state.comm, nullptr);
      after = ticks();
      break;
    case What::stamps:  // what the two time stamps of a call cost by themselves
      for (int i = 0; i < 2; i++) {
        const uint64_t stamp = shim::stamp_now(state.tsc);
        asm volatile("" : : "r"(stamp));
      }
      after = ticks();
      break;
    case What::floor:
      pay_floor(path);
      after = ticks();
      break;
    case What::hooked:
      ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, state.comm, nullptr);
      after = ticks();
      break;
    case What::expect: {
      std::vector<void*>& frames = state.expected[path];
      frames.resize(64);
      frames.resize(static_cast<size_t>(backtrace(frames.data(), 64)));
      break;
    }
  }
  return after - before;
}

// A way down chosen by the path's bits, at the far end first. Two functions a level, so that addresses tell them apart.
template <int level, int side>
__attribute__((noinline)) uint64_t down(uint64_t path, What what) {
  uint64_t result;
  if constexpr (level == 0)
    result = leaf(path, what);
  else if constexpr (level >= kLevels - 6)
    result = path >> (level - (kLevels - 6)) & 1 ? down<level - 1, 1>(path, what) : down<level - 1, 0>(path, what);
  else
    result = down<level - 1, 0>(path, what);
  asm volatile("" : "+r"(result));  // no tail call, and no merging of the two sides
  return result + side;
}

double nanoseconds_of(uint64_t path, What what) {
  return static_cast<double>(down<kLevels - 1, 0>(path, what)) / state.ticks_per_ns;
}

void measure_ticks() {
  const int64_t start = shim::nanoseconds(CLOCK_MONOTONIC);
  const uint64_t first = ticks();
  usleep(50000);
  state.ticks_per_ns =
      static_cast<double>(ticks() - first) / static_cast<double>(shim::nanoseconds(CLOCK_MONOTONIC) - start);
}

void prepare(const std::string& folder) {
  void* unwind = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
  if (unwind) state.unw_backtrace = reinterpret_cast<int (*)(void**, int)>(dlsym(unwind, "unw_backtrace"));
  void* nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (nccl) state.bare = reinterpret_cast<decltype(state.bare)>(dlsym(nccl, "pncclAllReduce"));
  if (!state.unw_backtrace || !state.bare || !dlsym(RTLD_DEFAULT, "lockstep_mark_v1")) {
    std::fprintf(stderr, "bench_shim: libunwind, libnccl or the shim is not in this process\n");
    std::exit(2);
  }
  constexpr size_t kBytes = 64u << 20;
  const int fd = open((folder + "/floor").c_str(), O_RDWR | O_CREAT, 0600);
  if (fd < 0 || posix_fallocate(fd, 0, kBytes) != 0) std::exit(2);
  state.ring = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0));
  if (state.ring == MAP_FAILED) std::exit(2);
  state.ring_records = kBytes / sizeof(Plain);
  if (getenv("LOCKSTEP_BENCH_STATES")) {
    void* cuda = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (!cuda) std::exit(2);
    reinterpret_cast<void (*)(uint64_t)>(dlsym(cuda, "fake_cuda_release"))(UINT64_MAX);
  }
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&state.comm, 1, id, 0);
  measure_ticks();
}

struct Samples {
  std::vector<double> timer, bare, stamps, floor, hooked;
};

Samples measure() {
  Samples samples;
  for (uint64_t path = 0; path < kPaths; path++) down<kLevels - 1, 0>(path, What::expect);
  for (uint64_t i = 0; i < kCalls; i++) {
    const uint64_t path = (i * 37 + i / kPaths) % kPaths;
    const double timer = nanoseconds_of(path, What::timer), bare = nanoseconds_of(path, What::bare);
    const double floor = nanoseconds_of(path, What::floor), hooked = nanoseconds_of(path, What::hooked);
    const double stamps = nanoseconds_of(path, What::stamps);
    if (i < kWarmUp) continue;
    samples.stamps.push_back(stamps);
    samples.timer.push_back(timer);
    samples.bare.push_back(bare);
    samples.floor.push_back(floor);
    samples.hooked.push_back(hooked);
  }
  return samples;
}

// The frames between leaf, which returns to several places, one for each kind of call, and the loop, which does too.
bool same_path(const std::vector<uint64_t>& recorded, const std::vector<void*>& expected) {
  if (recorded.size() <= kLevels || expected.size() <= kLevels || recorded.size() != expected.size()) return false;
  for (size_t i = 1; i <= kLevels; i++)
    if (recorded[i] != reinterpret_cast<uint64_t>(expected[i])) return false;
  return true;
}

// Wrong stacks of all calls in the trace; also checks that no call is missing.
uint64_t wrong_stacks(const std::string& folder, double& depth) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != trace::kFileSuffix) continue;
    const Result<trace::TraceFile> file = trace::read_trace(entry.path());
    if (!file) return kCalls;
    uint64_t right = 0;
    std::set<trace::StackRef> distinct;
    for (const trace::Call& call : file->calls) {
      if (call.count < kFirstCount || call.count >= kFirstCount + kPaths) continue;
      const std::vector<uint64_t> stack = file->stack(call.stack);
      depth = static_cast<double>(stack.size());
      distinct.insert(call.stack);
      right += same_path(stack, state.expected[call.count - kFirstCount]);
    }
    if (distinct.size() != kPaths) return kCalls;
    return kCalls - right;
  }
  return kCalls;
}

// For the process that started this one.
std::string result_file(const std::string& folder) { return folder + ".result"; }
void keep_result(const std::string& folder, double value) {
  if (FILE* file = std::fopen(result_file(folder).c_str(), "w")) {
    std::fprintf(file, "%f\n", value);
    std::fclose(file);
  }
}

double p50(const std::vector<double>& values) { return bench::quantile(values, 0.5); }

int report(const Samples& samples, const std::string& folder) {
  bench::Figures figures;
  const double timer = p50(samples.timer);
  const double floor = p50(samples.floor) - timer, hooked = p50(samples.hooked) - timer,
               bare = p50(samples.bare) - timer;
  const std::string name = getenv("LOCKSTEP_BENCH_NAME");
  if (getenv("LOCKSTEP_BENCH_STATES")) {
    figures.tell("shim." + name + ".call.p50", hooked, "ns");
    keep_result(folder, hooked - bare);
    return figures.exit_status();
  }
  if (!state.stacks) {
    figures.tell("shim." + name + ".floor.p50", floor, "ns");
    figures.tell("shim." + name + ".two_stamps.p50", p50(samples.stamps) - timer, "ns");
    figures.tell("shim." + name + ".call.p50", hooked, "ns");
    figures.tell("shim." + name + ".added_over_floor.p50", (hooked - bare) / floor, "x");
    figures.at_most("shim." + name + ".call_over_floor.p50", hooked / floor, state.tsc ? 1.5 : 3, "x");
    return figures.exit_status();
  }
  double depth = 0;
  const uint64_t wrong = wrong_stacks(folder, depth);
  std::vector<double> added = samples.hooked;
  for (double& value : added) value -= bare + timer;
  figures.tell("shim.frames", depth, "");
  figures.tell("shim.floor.p50", floor, "ns");
  figures.tell("shim.call.p50", hooked, "ns");
  figures.tell("shim.call.without_shim.p50", bare, "ns");
  figures.at_most("shim.call_over_floor.p50", hooked / floor, 1.5, "x");
  figures.tell("shim.floor.p99_9", bench::quantile(samples.floor, 0.999) - timer, "ns");
  figures.at_most("shim.added.p99_9", bench::quantile(added, 0.999), 5000, "ns");
  figures.at_most("shim.wrong_stacks_of_1000000", static_cast<double>(wrong), 0, "");
  return figures.exit_status();
}

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
};

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
    for (const char* name : {"LOCKSTEP", "LOCKSTEP_MODE", "LOCKSTEP_HANG_SECONDS"}) unsetenv(name);
    execl("/proc/self/exe", self, static_cast<char*>(nullptr));
    _exit(2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (FILE* file = added ? std::fopen(result_file(folder).c_str(), "r") : nullptr) {
    if (std::fscanf(file, "%lf", added) != 1) status = 2 << 8;
    std::fclose(file);
  }
  std::filesystem::remove(result_file(folder));
  std::filesystem::remove_all(folder);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

}  // namespace

int main(int, char** argv) {
  if (const char* folder = getenv("LOCKSTEP_BENCH_FOLDER")) {
    state.stacks = std::string(getenv("LOCKSTEP_STACKS")) == "1";
    state.tsc = std::string(getenv("LOCKSTEP_CLOCK")) == "tsc" && shim::tsc_is_steady();
    prepare(folder);
    return report(measure(), folder);
  }
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
#ifdef DEMO_PROGRAM
  note(report_share(added));
  note(report_loop());
#else
  std::puts("shim.demo, shim.loop_1MiB: skipped, this build has no host runtime");
#endif
  return worst;
}
