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

#include "tests/bench/shim_calls.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
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
// Of the long way, calls in groups and calls whose buffers are digested.
enum class Way { plain, grouped, digested };
constexpr int kMembers = 8;

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
  Way way = Way::plain;
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

// Time a member, its part of the group's two ends included.
uint64_t grouped_call(char* buffer, size_t count) {
  const uint64_t before = ticks();
  ncclGroupStart();
  for (int i = 0; i < kMembers; i++) ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, state.comm, nullptr);
  ncclGroupEnd();
  return (ticks() - before) / kMembers;
}

// The one place all calls are made from.
__attribute__((noinline)) uint64_t leaf(uint64_t path, What what) {
  char buffer[256];
  const size_t count = state.way == Way::digested ? sizeof buffer / sizeof(float) : kFirstCount + path;
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
      if (state.way == Way::grouped) return grouped_call(buffer, count);
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
  const uint64_t rounds = state.way == Way::grouped ? kCalls / (kMembers + 2) : kCalls;
  for (uint64_t path = 0; path < kPaths; path++) down<kLevels - 1, 0>(path, What::expect);
  for (uint64_t i = 0; i < rounds; i++) {
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

void keep_result(const std::string& folder, double value) {
  if (FILE* file = std::fopen(bench::result_file(folder).c_str(), "w")) {
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
  if (getenv("LOCKSTEP_BENCH_STATES") || getenv("LOCKSTEP_BENCH_WAY")) {
    figures.tell("shim." + name + ".call.p50", hooked, "ns");
    figures.tell("shim." + name + ".call.p99_9", bench::quantile(samples.hooked, 0.999) - timer, "ns");
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

}  // namespace

namespace lockstep::bench {

std::string result_file(const std::string& folder) { return folder + ".result"; }

int measure_calls(const std::string& folder) {
  state.stacks = std::string(getenv("LOCKSTEP_STACKS")) == "1";
  state.tsc = std::string(getenv("LOCKSTEP_CLOCK")) == "tsc" && shim::tsc_is_steady();
  if (const char* way = getenv("LOCKSTEP_BENCH_WAY")) {
    if (std::strcmp(way, "grouped") == 0) state.way = Way::grouped;
    if (std::strcmp(way, "digested") == 0) state.way = Way::digested;
  }
  prepare(folder);
  return report(measure(), folder);
}

}  // namespace lockstep::bench
