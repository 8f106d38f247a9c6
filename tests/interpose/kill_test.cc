// SPDX-License-Identifier: MIT
//
// SIGKILL at random instants. A job issues calls as fast as it can from several threads and counts, in a shared page of
// its own, the calls that have come back; a call's arguments follow from its thread and its number. Whatever the instant,
// every counted call within the last ring length must be in the trace, returned, with equal arguments, and every file that
// has its final name must be readable.
//
//   kill_test ROUNDS [SEED]
//
// "Within the last ring length" is told without trusting the trace's own order: at most one record a thread may be torn,
// which leaves no room for a missing one, and each thread's calls must be there without a gap up to the last it counted.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "interpose/abi/nccl.h"
#include "interpose/trace/reader.h"
#include "tests/interpose/run_client.h"

namespace {

using namespace lockstep;

constexpr unsigned kThreads = 3;

struct alignas(64) Witness {
  std::atomic<uint64_t> returned;
};

struct Arguments {
  abi::Fn fn;
  uint64_t count;
  int dtype, redop, peer;
  uint64_t send, recv, stream;
};

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

Arguments arguments_of(unsigned thread, uint64_t number) {
  constexpr abi::Fn kFunctions[] = {abi::Fn::AllReduce, abi::Fn::Broadcast, abi::Fn::Send, abi::Fn::Recv};
  const uint64_t r = mix(uint64_t{thread} << 56 ^ number);
  Arguments a = {};
  a.fn = kFunctions[r % 4];
  a.count = (uint64_t{thread} + 1) << 48 | number;  // tells the call, and is beyond the counts the fake gives a meaning
  a.dtype = static_cast<int>(r >> 8 & 7);
  a.peer = static_cast<int>(r >> 16 & 3);
  a.redop = a.fn == abi::Fn::AllReduce ? static_cast<int>(r >> 24 & 3) : 0;
  a.send = a.fn == abi::Fn::Recv ? 0 : r >> 4;
  a.recv = a.fn == abi::Fn::Send ? 0 : r >> 5;
  a.stream = r >> 6;
  if (a.fn == abi::Fn::AllReduce) a.peer = -1;
  return a;
}

void call(const Arguments& a, ncclComm_t comm) {
  const auto* send = reinterpret_cast<const void*>(a.send);
  auto* recv = reinterpret_cast<void*>(a.recv);
  const auto stream = reinterpret_cast<cudaStream_t>(a.stream);
  const auto type = static_cast<ncclDataType_t>(a.dtype);
  switch (a.fn) {
    case abi::Fn::AllReduce: ncclAllReduce(send, recv, a.count, type, static_cast<ncclRedOp_t>(a.redop), comm, stream); break;
    case abi::Fn::Broadcast: ncclBroadcast(send, recv, a.count, type, a.peer, comm, stream); break;
    case abi::Fn::Send: ncclSend(send, a.count, type, a.peer, comm, stream); break;
    default: ncclRecv(recv, a.count, type, a.peer, comm, stream); break;
  }
}

Witness* map_witness(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Witness) * kThreads) != 0) return nullptr;
  void* page = mmap(nullptr, sizeof(Witness) * kThreads, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return page == MAP_FAILED ? nullptr : static_cast<Witness*>(page);
}

int job(const std::string& witness_path) {
  Witness* witness = map_witness(witness_path);
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm = nullptr;
  ncclCommInitRank(&comm, 4, id, 1);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; t++)
    threads.emplace_back([=] {
      for (uint64_t n = 0;; n++) {
        call(arguments_of(t, n), comm);
        witness[t].returned.store(n + 1, std::memory_order_release);
      }
    });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

// --- the judge -----------------------------------------------------------------------------------------------------------------

int complain(const std::string& sentence) {
  std::fprintf(stderr, "%s\n", sentence.c_str());
  return 1;
}

bool equal(const trace::Call& call, const Arguments& a) {
  return call.fn == static_cast<uint16_t>(a.fn) && call.count == a.count && call.dtype == a.dtype && call.redop == a.redop &&
         call.peer == a.peer && call.sendbuff == a.send && call.recvbuff == a.recv && call.stream == a.stream;
}

int check_thread(const std::map<uint64_t, const trace::Call*>& found, unsigned thread, uint64_t returned, bool wrapped) {
  const std::string who = "thread " + std::to_string(thread);
  if (returned == 0) return 0;
  if (found.empty()) return wrapped ? 0 : complain(who + ": none of its " + std::to_string(returned) + " calls is there");
  if (!wrapped && found.begin()->first != 0) return complain(who + ": its first call is missing");
  if (found.rbegin()->first + 1 < returned)
    return complain(who + ": the last call there is " + std::to_string(found.rbegin()->first) + ", but " +
                    std::to_string(returned) + " had returned");
  uint64_t expected = found.begin()->first;
  for (const auto& [number, call] : found) {
    if (number != expected++) return complain(who + ": call " + std::to_string(expected - 1) + " is missing");
    if (!equal(*call, arguments_of(thread, number)))
      return complain(who + ": call " + std::to_string(number) + " has other arguments");
    if (number < returned && !call->returned)
      return complain(who + ": call " + std::to_string(number) + " returned, but the trace does not say so");
  }
  return 0;
}

int check(const trace::TraceFile& file, const Witness* witness) {
  if (!file.problems.empty()) return complain(file.problems[0]);
  if (file.torn > kThreads) return complain(std::to_string(file.torn) + " torn records; at most one a thread can be");
  std::map<uint64_t, const trace::Call*> found[kThreads];
  for (const trace::Call& call : file.calls) {
    const uint64_t thread = (call.count >> 48) - 1;
    if (thread < kThreads) found[thread][call.count & 0xFFFFFFFFFFFFull] = &call;
  }
  for (unsigned t = 0; t < kThreads; t++)
    if (check_thread(found[t], t, witness[t].returned.load(std::memory_order_acquire), file.overwritten > 0)) return 1;
  return 0;
}

struct Tally {
  unsigned checked = 0, wrapped = 0, before_the_trace = 0;
};

Environment environment(const std::string& folder) {
  return {{"LD_PRELOAD", SHIM_LIBRARY}, {"LOCKSTEP_DIR", folder}, {"LOCKSTEP_RING_MB", "1"}, {"LOCKSTEP", ""}};
}

double seconds() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Until the job has made that many calls, or 20 s have gone.
void wait_for_calls(const Witness* witness, uint64_t calls) {
  const double start = seconds();
  uint64_t done = 0;
  do {
    usleep(200);
    done = 0;
    for (unsigned t = 0; t < kThreads; t++) done += witness[t].returned.load();
  } while (done < calls && seconds() - start < 20);
}

// When to kill: counted from the first call, however long a busy machine takes to get there, or from the start.
struct Instant {
  bool in_flight;
  double us;
};

int one_round(const std::string& self, const std::string& folder, Instant instant, Tally& tally) {
  const std::string witness_path = folder + "/witness";
  Witness* witness = map_witness(witness_path);
  if (!witness) return complain("cannot make " + witness_path);
  Process process({self, "--job", witness_path}, environment(folder));
  if (instant.in_flight) wait_for_calls(witness, 1);
  usleep(static_cast<useconds_t>(instant.us));
  kill(process.pid(), SIGKILL);
  const Outcome outcome = process.finish(10);
  int wrong = outcome.signalled_by(SIGKILL) ? 0 : complain("the job ended by itself: " + outcome.err);
  unsigned files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != trace::kFileSuffix) continue;
    files++;
    const Result<trace::TraceFile> file = trace::read_trace(entry.path());
    if (!file) return complain(file.error());
    if (trace::look_alive(*file) != trace::Liveness::dead) wrong |= complain("a killed process is not called dead");
    wrong |= check(*file, witness);
    tally.wrapped += file->overwritten > 0;
  }
  if (files == 0) {
    tally.before_the_trace++;
    for (unsigned t = 0; t < kThreads; t++)
      if (witness[t].returned.load()) wrong |= complain("calls had returned, but there is no trace");
  }
  tally.checked++;
  munmap(witness, sizeof(Witness) * kThreads);
  return wrong;
}

// How long this machine, with this build, needs to the first call and to a full ring.
bool calibrate(const std::string& self, double& to_first_call_us, double& to_wrap_us) {
  char folder[] = "/tmp/lockstep-kill-XXXXXX";
  if (!mkdtemp(folder)) return false;
  const std::string witness_path = std::string(folder) + "/witness";
  Witness* witness = map_witness(witness_path);
  const double start = seconds();
  Process process({self, "--job", witness_path}, environment(folder));
  const auto wait = [&](uint64_t calls) {
    wait_for_calls(witness, calls);
    return (seconds() - start) * 1e6;
  };
  to_first_call_us = wait(1);
  to_wrap_us = wait(trace::kSegmentBytes / sizeof(trace::Record) / 2) - to_first_call_us;
  kill(process.pid(), SIGKILL);
  process.finish(10);
  std::filesystem::remove_all(folder);
  return to_first_call_us < 19e6;
}

int rounds(const std::string& self, unsigned count, unsigned seed) {
  double to_first_call, to_wrap;
  if (!calibrate(self, to_first_call, to_wrap)) return complain("the job makes no calls");
  std::mt19937 random(seed);
  // Most instants in full flight, from the first call to several times around the ring; some while the file is being made.
  std::exponential_distribution<double> flight(1 / (3 * to_wrap + 2000));
  std::uniform_real_distribution<double> start(0, to_first_call * 1.2);
  Tally tally;
  int wrong = 0;
  for (unsigned i = 0; i < count && !wrong; i++) {
    char folder[] = "/tmp/lockstep-kill-XXXXXX";
    if (!mkdtemp(folder)) return complain("cannot make a temporary folder");
    const Instant instant = i % 4 ? Instant{true, std::min(flight(random), 300000.0)} : Instant{false, start(random)};
    wrong = one_round(self, folder, instant, tally);
    if (wrong)
      std::fprintf(stderr, "round %u, seed %u, killed %.0f us after %s\n", i, seed, instant.us,
                   instant.in_flight ? "the first call" : "the start");
    std::filesystem::remove_all(folder);
  }
  std::printf("%u kills: %u of wrapped rings, %u before there was a trace, seed %u\n", tally.checked, tally.wrapped,
              tally.before_the_trace, seed);
  // The instants must have been worth something.
  if (!wrong && tally.wrapped < count / 5) return complain("too few kills hit a wrapped ring");
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--job") return job(argv[2]);
  const unsigned count = argc > 1 ? static_cast<unsigned>(atoi(argv[1])) : 20;
  const unsigned seed = argc > 2 ? static_cast<unsigned>(atoi(argv[2])) : std::random_device{}();
  return rounds(std::filesystem::read_symlink("/proc/self/exe"), count, seed);
}
