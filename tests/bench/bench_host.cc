// SPDX-License-Identifier: MIT
//
// How fast the host runtime is, against Open MPI's MPI_Allreduce in the same run; see host_board.h. Both figures of a
// pair are printed before the ratio that has the target. With as many cores as ranks Open MPI may spin or yield while
// it waits, and the faster of the two counts; with fewer cores it must yield, for spinning is a thousand times slower
// there.
//
// Then many ranks: 64 as threads and as processes, 256 as threads.
//
// Measures what begins with the names given on the command line, or everything.

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "cuda_runtime.h"
#include "nccl.h"
#include "tests/bench/figures.h"
#include "tests/bench/host_board.h"
#include "tests/reference/mixed.h"

namespace {

using namespace lockstep;
using namespace lockstep::bench;

std::vector<std::string> names_wanted;
bool wanted(const std::string& name) {
  return names_wanted.empty() || std::any_of(names_wanted.begin(), names_wanted.end(), [&](const std::string& begin) {
           return name.compare(0, begin.size(), begin) == 0;
         });
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "bench_host: %s\n", why.c_str());
  std::exit(2);
}

int cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// With a core for each rank mpirun binds every rank to one, so ours are bound too; with fewer nobody is.
bool bound(int ranks) { return ranks <= cores(); }
void bind_to_core(int index) {
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) return;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mine) || index-- > 0) continue;
    CPU_ZERO(&mine);
    CPU_SET(core, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
    return;
  }
}

pid_t start(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) give_up("cannot fork");
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int status = body();
  std::fflush(nullptr);
  _exit(status);
}

// --- two jobs at their boards

class Job {
 public:
  Job(std::string name, int ranks) : name_(std::move(name)) {
    fd_ = memfd_create("bench-board", 0);
    if (fd_ < 0 || ftruncate(fd_, sizeof(Board)) != 0 || (board_ = map_board(fd_)) == nullptr)
      give_up("cannot make a board in shared memory");
    board_->bench_pid = getpid();
    board_->ranks = ranks;
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    board_->over.store(1);
    board_->bell.ring();
    for (const pid_t process : processes_) waitpid(process, nullptr, 0);
    munmap(board_, sizeof(Board));
    close(fd_);
  }

  void start_ours() {
    ncclUniqueId id;
    if (ncclGetUniqueId(&id) != ncclSuccess) give_up(ncclGetLastError(nullptr));
    for (int rank = 0; rank < board_->ranks; ++rank)
      processes_.push_back(start([&, rank] { return our_rank(*board_, id, rank); }));
  }
  void start_mpi(bool yields) {
    const std::string board = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
    const std::string ranks = std::to_string(board_->ranks);
    processes_.push_back(start([&] {
      setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
      setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
      if (const int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
      execlp("mpirun", "mpirun", "--oversubscribe", "--bind-to", bound(board_->ranks) ? "core" : "none", "-n",
             ranks.c_str(), "--mca", "mpi_yield_when_idle", yields ? "1" : "0", MPI_PEER, board.c_str(),
             static_cast<char*>(nullptr));
      return 2;
    }));
  }
  void await_ready() {
    await([&] { return board_->ready.load() == static_cast<uint32_t>(board_->ranks); });
  }

  // Microseconds an operation took, the middle of the samples; from the first rank's begin to the last one's end.
  double round(uint64_t floats, int samples, int per_sample) {
    board_->floats = floats;
    board_->samples = samples;
    board_->per_sample = per_sample;
    board_->rounds.fetch_add(1);
    board_->bell.ring();
    await([&] { return board_->done.load() == board_->rounds.load() * static_cast<uint32_t>(board_->ranks); });
    std::vector<double> times;
    for (int s = 0; s < samples; ++s) {
      int64_t begin = board_->begin[0][s];
      int64_t end = board_->end[0][s];
      for (int r = 1; r < board_->ranks; ++r) {
        begin = std::min(begin, board_->begin[r][s]);
        end = std::max(end, board_->end[r][s]);
      }
      times.push_back(static_cast<double>(end - begin) / 1000.0 / per_sample);
    }
    return quantile(std::move(times), 0.5);
  }
  uint64_t wrong() const { return board_->wrong.load(); }

 private:
  static int our_rank(Board& board, const ncclUniqueId& id, int rank) {
    if (bound(board.ranks)) bind_to_core(rank);
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float* send = nullptr;
    float* recv = nullptr;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaMalloc(&send, kMaxFloats * 4) != cudaSuccess || cudaMalloc(&recv, kMaxFloats * 4) != cudaSuccess ||
        ncclCommInitRank(&comm, board.ranks, id, rank) != ncclSuccess)
      return 1;
    serve(board, rank, send, recv, [&](const float* from, float* to, size_t floats) {
      if (ncclAllReduce(from, to, floats, ncclFloat32, ncclSum, comm, stream) != ncclSuccess) _exit(1);
      cudaStreamSynchronize(stream);
    });
    return ncclCommDestroy(comm) == ncclSuccess ? 0 : 1;
  }

  template <class Condition>
  void await(Condition reached) {
    for (int turns = 0; !reached(); ++turns) {
      for (const pid_t process : processes_)
        if (turns % 64 == 63 && waitpid(process, nullptr, WNOHANG) == process)
          give_up("a process of the job '" + name_ + "' ended before its time");
      if (turns > 120'000) give_up("the job '" + name_ + "' does not come to its board");
      usleep(turns < 10 ? 200 : 1000);
    }
  }

  const std::string name_;
  int fd_ = -1;
  Board* board_ = nullptr;
  std::vector<pid_t> processes_;
};

struct Case {
  std::string name;
  uint64_t floats;
  int samples;     // of a round
  int per_sample;  // operations in a row
  int pairs;
  double target;  // of the ratio
  bool latency;
};

// Alternates short rounds of all jobs; ratios are taken pair by pair, so what slows the machine for longer than a pair
// takes does not show in them.
void compare(Figures& figures, const Case& what, Job& ours, std::vector<std::unique_ptr<Job>>& peers) {
  std::vector<double> our_times;
  std::vector<std::vector<double>> peer_times(peers.size());
  for (int pair = -2; pair < what.pairs; ++pair) {  // two to warm up
    const bool ours_first = pair % 2 == 0;
    double mine = ours_first ? ours.round(what.floats, what.samples, what.per_sample) : 0;
    for (size_t p = 0; p < peers.size(); ++p) {
      const double theirs = peers[p]->round(what.floats, what.samples, what.per_sample);
      if (pair >= 0) peer_times[p].push_back(theirs);
    }
    if (!ours_first) mine = ours.round(what.floats, what.samples, what.per_sample);
    if (pair >= 0) our_times.push_back(mine);
  }
  const double our_time = quantile(our_times, 0.5);
  const double bytes = static_cast<double>(what.floats) * 4;
  const auto tell = [&](const std::string& who, double time) {
    if (what.latency)
      figures.tell(what.name + "." + who, time, "us");
    else
      figures.tell(what.name + "." + who, bytes / time / 1000, "GB/s");
  };
  tell("lockstep", our_time);
  if (peers.empty()) return;
  size_t best = 0;
  for (size_t p = 1; p < peers.size(); ++p)
    if (quantile(peer_times[p], 0.5) < quantile(peer_times[best], 0.5)) best = p;
  tell("openmpi", quantile(peer_times[best], 0.5));
  std::vector<double> ratios;
  for (size_t i = 0; i < our_times.size(); ++i)
    ratios.push_back(what.latency ? our_times[i] / peer_times[best][i] : peer_times[best][i] / our_times[i]);
  const double ratio = quantile(ratios, 0.5);
  if (what.latency)
    figures.at_most(what.name + ".latency_over_openmpi", ratio, what.target, "x");
  else
    figures.at_least(what.name + ".bandwidth_over_openmpi", ratio, what.target, "x");
}

bool have_mpi() {
#ifdef MPI_PEER_BUILT
  return std::system("command -v mpirun >/dev/null 2>&1") == 0;
#else
  return false;
#endif
}

void against_mpi(Figures& figures, int ranks, const std::vector<Case>& cases) {
  if (std::none_of(cases.begin(), cases.end(), [](const Case& each) { return wanted(each.name); })) return;
  Job ours("lockstep", ranks);
  ours.start_ours();
  ours.await_ready();
  std::vector<std::unique_ptr<Job>> peers;
  if (have_mpi()) {
    for (const bool yields : {true, false}) {
      if (!yields && ranks > cores()) continue;
      peers.push_back(std::make_unique<Job>(yields ? "mpirun, yielding" : "mpirun, spinning", ranks));
      peers.back()->start_mpi(yields);
      peers.back()->await_ready();
    }
  }
  for (const Case& each : cases)
    if (wanted(each.name)) compare(figures, each, ours, peers);
  uint64_t wrong = ours.wrong();
  for (const auto& peer : peers) wrong += peer->wrong();
  figures.at_most("host.allreduce.ranks" + std::to_string(ranks) + ".wrong_results", static_cast<double>(wrong), 0, "");
}

// --- many ranks

struct Crowd {
  std::atomic<int> finished;  // with their collectives
  std::atomic<int> failed;
  std::atomic<int> may_leave;
  std::atomic<int> left;
};

void crowd_rank(Crowd& crowd, const ncclUniqueId& id, int rank, int n, int rounds) {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  const bool ready = cudaSetDevice(rank) == cudaSuccess &&
                     cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
                     ncclCommInitRank(&comm, n, id, rank) == ncclSuccess;
  {
    test::MixedCollectives collectives(rank, n);
    if (!ready || !collectives.run(rounds, comm, stream)) crowd.failed.fetch_add(1);
    crowd.finished.fetch_add(1);
    while (crowd.may_leave.load() == 0) usleep(5000);
  }
  if (ncclCommDestroy(comm) != ncclSuccess || cudaStreamDestroy(stream) != cudaSuccess) crowd.failed.fetch_add(1);
  crowd.left.fetch_add(1);
}

// Memory of a process, shared pages divided among those that share them.
double mebibytes(pid_t process) {
  double kib = 0;
  if (std::FILE* file = std::fopen(("/proc/" + std::to_string(process) + "/smaps_rollup").c_str(), "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, file) != nullptr)
      if (std::strncmp(line, "Pss:", 4) == 0) kib = std::atof(line + 4);
    std::fclose(file);
  }
  return kib / 1024;
}

void many_ranks(Figures& figures, const std::string& name, int n, bool threads, int rounds, double seconds_target) {
  if (!wanted(name)) return;
  setenv("LOCKSTEP_HOST_DEVICES", std::to_string(n).c_str(), 1);
  auto* const crowd =
      static_cast<Crowd*>(mmap(nullptr, sizeof(Crowd), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ncclUniqueId id;
  if (crowd == MAP_FAILED || ncclGetUniqueId(&id) != ncclSuccess) give_up("cannot prepare many ranks");
  const int64_t begin = now_ns();
  std::vector<pid_t> processes;
  if (threads) {
    processes.push_back(start([&] {
      std::vector<std::thread> ranks;
      for (int r = 0; r < n; ++r) ranks.emplace_back([&, r] { crowd_rank(*crowd, id, r, n, rounds); });
      for (std::thread& rank : ranks) rank.join();
      return 0;
    }));
  } else {
    for (int r = 0; r < n; ++r)
      processes.push_back(start([&, r] {
        crowd_rank(*crowd, id, r, n, rounds);
        return 0;
      }));
  }
  const auto await = [&](const std::atomic<int>& count) {
    while (count.load() < n && now_ns() - begin < 120'000'000'000) usleep(2000);
    return static_cast<double>(now_ns() - begin) * 1e-9;
  };
  const double seconds = await(crowd->finished);
  double memory = 0;
  for (const pid_t process : processes) memory += mebibytes(process);
  crowd->may_leave.store(1);
  await(crowd->left);
  const int missing = n - crowd->left.load() + crowd->failed.load();
  for (const pid_t process : processes) {
    if (missing != 0) kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  munmap(crowd, sizeof(Crowd));
  unsetenv("LOCKSTEP_HOST_DEVICES");
  figures.at_most(name + ".seconds", seconds, seconds_target, "s");
  figures.at_most(name + ".memory", memory, 2048, "MiB");
  figures.at_most(name + ".ranks_that_failed", missing, 0, "");
}

}  // namespace

int main(int argc, char** argv) {
  names_wanted.assign(argv + 1, argv + argc);
  Figures figures;
  if (!have_mpi())
    std::printf(
        "host.allreduce: skipped the comparison, Open MPI (mpi.h and mpirun) was not there when this was built\n");
  const uint64_t mib = (1u << 20) / 4;
  against_mpi(figures, 2,
              {{"host.allreduce.ranks2.8B", 2, 20, 50, 40, 2.0, true},
               {"host.allreduce.ranks2.1MiB", mib, 15, 1, 40, 1.5, false},
               {"host.allreduce.ranks2.16MiB", 16 * mib, 3, 1, 20, 1.5, false}});
  against_mpi(figures, 4,
              {{"host.allreduce.ranks4.8B", 2, 5, 50, 40, 2.0, true},
               {"host.allreduce.ranks4.1MiB", mib, 10, 1, 40, 1.0, false}});
  many_ranks(figures, "host.threads64", 64, true, 100, 20);
  many_ranks(figures, "host.processes64", 64, false, 100, 20);
  many_ranks(figures, "host.threads256", 256, true, 1, 60);
  return figures.exit_status();
}
