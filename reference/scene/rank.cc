// SPDX-License-Identifier: MIT

#include "reference/scene/rank.h"

#include <cuda_runtime.h>
#include <lockstep.h>
#include <nccl.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "reference/scene/frames.h"

namespace lockstep::scene {
namespace {

using scenario::Communicator;
using scenario::Statement;
using scenario::Verb;

timespec now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t;
}

timespec after(double seconds) {
  timespec t = now();
  auto whole = static_cast<time_t>(seconds);
  t.tv_sec += whole;
  t.tv_nsec += static_cast<long>((seconds - static_cast<double>(whole)) * 1e9);
  if (t.tv_nsec >= 1'000'000'000) t.tv_sec++, t.tv_nsec -= 1'000'000'000;
  return t;
}

void sleep_for(double seconds) {
  if (std::isinf(seconds))
    for (;;) pause();
  timespec end = after(seconds);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) == EINTR) {
  }
}

void spin_for(double seconds) {
  timespec end = std::isinf(seconds) ? after(1e6) : after(seconds);
  for (timespec t = now(); t.tv_sec < end.tv_sec || (t.tv_sec == end.tv_sec && t.tv_nsec < end.tv_nsec); t = now())
    sched_yield();
}

// Host work queued on a stream. The pointer is to the statement, which outlives every stream.
void stalled_host_function(void* statement) { sleep_for(static_cast<Statement*>(statement)->seconds); }

class Rank {
 public:
  Rank(Stage& stage, int scene_rank)
      : stage_(stage),
        scenario_(stage.scenario),
        scene_rank_(scene_rank),
        world_rank_(stage.world_rank[static_cast<size_t>(scene_rank)]) {}

  void play() {
    set_device();
    publish_ids();
    allocate();
    make_stream("main");
    current_ = "main";
    meet(stage_.board, scenario_.ranks);
    for (const Communicator& c : scenario_.communicators)
      if (!c.later) init(c);
    play_shift();
    play(scenario_.programs[static_cast<size_t>(scene_rank_)]);
    end();
  }

 private:
  void nccl(ncclResult_t result, const char* what) {
    if (result == ncclSuccess) return;
    if (tolerant_ == 0) give_up(what, ncclGetErrorString(result));
    complain(what, ncclGetErrorString(result));
  }
  void cuda(cudaError_t result, const char* what) {
    if (result != cudaSuccess) give_up(what, cudaGetErrorString(result));
  }
  // As a framework's exception would end the process.
  [[noreturn]] void give_up(const char* what, const char* why) {
    complain(what, why);
    std::exit(1);
  }
  void complain(const char* what, const char* why) {
    std::fprintf(stderr, "lockstep-scene: %s:%d: rank %d: %s: %s\n", scenario_.path.c_str(), line_, scene_rank_, what,
                 why);
  }

  void set_device() {
    int devices = 0;
    cuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (devices > 0) cuda(cudaSetDevice(world_rank_ % devices), "cudaSetDevice");
  }

  // The first member of each communicator makes its id; every id is out before anything can go wrong.
  void publish_ids() {
    for (const Communicator& c : scenario_.communicators) {
      if (!c.split_from.empty()) continue;
      for (size_t g = 0; g < c.groups.size(); g++) {
        if (c.groups[g][0] != scene_rank_) continue;
        ncclUniqueId id;
        nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
        publish_id(stage_.board, id_cell(c, g), id);
      }
    }
  }
  int id_cell(const Communicator& c, size_t group) const {
    return stage_.plan.first_id.at(c.name) + static_cast<int>(group);
  }

  static size_t group_index(const Communicator& c, int rank) {
    for (size_t g = 0; g < c.groups.size(); g++)
      if (std::count(c.groups[g].begin(), c.groups[g].end(), rank)) return g;
    return c.groups.size();
  }

  // Rank of a scene's rank inside a communicator: its place in the list, but in world its world rank.
  int rank_in(const Communicator& c, int rank) const {
    if (c.name == scenario::kWorld) return stage_.world_rank[static_cast<size_t>(rank)];
    const std::vector<int>& group = *c.group_of(rank);
    return static_cast<int>(std::find(group.begin(), group.end(), rank) - group.begin());
  }

  void init(const Communicator& c) {
    if (!c.split_from.empty()) return split(c);
    if (!c.group_of(scene_rank_)) return;
    size_t g = group_index(c, scene_rank_);
    ncclUniqueId id = await_id(stage_.board, id_cell(c, g));
    ncclComm_t comm = nullptr;
    int size = static_cast<int>(c.groups[g].size());
    if (c.name == scenario::kWorld) {
      nccl(ncclCommInitRank(&comm, size, id, rank_in(c, scene_rank_)), "ncclCommInitRank");
    } else {
      ncclConfig_t config = named(c);
      nccl(ncclCommInitRankConfig(&comm, size, id, rank_in(c, scene_rank_), &config), "ncclCommInitRankConfig");
    }
    if (comm) comms_[c.name] = comm;
  }

  void split(const Communicator& c) {
    auto parent = comms_.find(c.split_from);
    if (parent == comms_.end()) return;
    bool member = c.group_of(scene_rank_) != nullptr;
    int color = member ? static_cast<int>(group_index(c, scene_rank_)) : NCCL_SPLIT_NOCOLOR;
    ncclConfig_t config = named(c);
    ncclComm_t comm = nullptr;
    nccl(ncclCommSplit(parent->second, color, member ? rank_in(c, scene_rank_) : 0, &comm, &config), "ncclCommSplit");
    if (member && comm) comms_[c.name] = comm;
  }

  static ncclConfig_t named(const Communicator& c) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = c.name.c_str();
    return config;
  }

  size_t bytes_needed(const std::vector<Statement>& body) const {
    size_t most = 0;
    for (const Statement& s : body) {
      most = std::max(most, bytes_needed(s.body));
      if (s.verb != Verb::communicate) continue;
      size_t members = scenario_.find(s.name)->group_of(scene_rank_)->size();
      most = std::max(most, s.count * abi::dtype_size(s.dtype) * members);
    }
    return most;
  }

  void allocate() {
    size_t bytes = std::max<size_t>(bytes_needed(scenario_.programs[static_cast<size_t>(scene_rank_)]), 4096);
    // Digests are made of memory that the host can read.
    const bool for_digests = std::getenv("LOCKSTEP_DIGEST") != nullptr;
    for (void** buffer : {&send_, &recv_})
      if (for_digests)
        cuda(cudaMallocHost(buffer, bytes), "cudaMallocHost");
      else
        cuda(cudaMalloc(buffer, bytes), "cudaMalloc");
    cuda(cudaMemset(send_, 0, bytes), "cudaMemset");
  }

  cudaStream_t make_stream(const std::string& name) {
    auto [at, fresh] = streams_.emplace(name, nullptr);
    if (fresh) cuda(cudaStreamCreateWithFlags(&at->second, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return at->second;
  }
  cudaStream_t stream() { return streams_.at(current_); }

  void mark_step(int64_t asked) {
    step_ = asked < 0 ? step_ + 1 : asked + stage_.shift;
    lockstep_step(static_cast<uint64_t>(step_));
  }

  // Agreed steps in front of the scene; every communicator gets one call in each. Of very many, the host does not wait
  // for each.
  void play_shift() {
    const int between = stage_.shift > 100 ? 16 : 1;
    for (int i = 0; i < stage_.shift; i++) {
      mark_step(-1);
      for (const Communicator& c : scenario_.communicators) {
        auto comm = comms_.find(c.name);
        if (comm == comms_.end()) continue;
        nccl(ncclAllReduce(send_, recv_, 16, ncclFloat, ncclSum, comm->second, stream()), "ncclAllReduce");
      }
      if (i % between == 0 || i + 1 == stage_.shift) cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    }
  }

  void play(const std::vector<Statement>& body) {
    for (const Statement& s : body) {
      line_ = s.line;
      play(s);
    }
  }

  void play(const Statement& s) {
    switch (s.verb) {
      case Verb::step:
        return mark_step(s.number);
      case Verb::phase:
        return lockstep_phase(s.name.c_str());
      case Verb::sample:
        return lockstep_sample_id(fill_in(s.name).c_str());
      case Verb::communicate:
        return communicate(s);
      case Verb::group:
        return play_group(s);
      case Verb::stream:
        make_stream(current_ = s.name);
        return;
      case Verb::sync:
        return cuda(cudaStreamSynchronize(s.name.empty() ? stream() : make_stream(s.name)), "cudaStreamSynchronize");
      case Verb::sync_device:
        return cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      case Verb::stall:
        return cuda(cudaLaunchHostFunc(stream(), stalled_host_function, const_cast<Statement*>(&s)),
                    "cudaLaunchHostFunc");
      case Verb::sleep:
        return sleep_for(s.seconds);
      case Verb::spin:
        return spin_for(s.seconds);
      case Verb::tell:
        return raise_flag(stage_.board, stage_.plan.flags.at(s.name));
      case Verb::await:
        return await_flag(stage_.board, stage_.plan.flags.at(s.name), s.number);
      case Verb::await_end:
        return await_end(stage_.board, static_cast<int>(s.number));
      case Verb::await_verdict:
        return await_verdict(stage_.board);
      case Verb::judge:
        return await_judge();
      case Verb::device:
        return cuda(cudaSetDevice(static_cast<int>(s.number)), "cudaSetDevice");
      case Verb::attempt:
        tolerant_++;
        play(s.body);
        tolerant_--;
        return;
      case Verb::beside:
        return play_beside(s);
      case Verb::graph:
        return play_graph(s);
      case Verb::init:
        return init(*scenario_.find(s.name));
      case Verb::destroy:
        return close(s.name, ncclCommDestroy, "ncclCommDestroy");
      case Verb::finalize:
        return nccl(ncclCommFinalize(comm(s.name)), "ncclCommFinalize");
      case Verb::abort_comm:
        return close(s.name, ncclCommAbort, "ncclCommAbort");
      case Verb::repeat:
        for (int64_t i = 0; i < s.number; i++) play(s.body);
        return;
      case Verb::in:
        return run_in(s.name, [&] { play(s.body); });
      case Verb::exit:
        std::exit(static_cast<int>(s.number));
      case Verb::quick_exit:
        _exit(static_cast<int>(s.number));
      case Verb::abort:
        std::abort();
      case Verb::segv:
        return write_nowhere();
      case Verb::kill:
        kill(getpid(), SIGKILL);
        return;
      case Verb::stop:
        kill(getpid(), SIGSTOP);
        return;
      case Verb::kill_job:
        return kill_job();
    }
  }

  // Not for the sanitizer to stop first: the scene wants the signal.
  __attribute__((no_sanitize("undefined"))) static void write_nowhere() {
    volatile int* volatile nowhere = nullptr;  // volatile, or the compiler leaves the store out
    *nowhere = 1;
  }

  // The launcher's death takes every rank with it at the same instant.
  void kill_job() {
    kill(stage_.launcher_pid ? stage_.launcher_pid : getpid(), SIGKILL);
    sleep_for(scenario::kForever);
  }

  std::string fill_in(std::string text) const {
    auto replace = [&](const std::string& what, int64_t value) {
      for (size_t at; (at = text.find(what)) != std::string::npos;)
        text.replace(at, what.size(), std::to_string(value));
    };
    replace("{step}", step_);
    replace("{rank}", world_rank_);
    return text;
  }

  ncclComm_t comm(const std::string& name) {
    auto at = comms_.find(name);
    if (at == comms_.end())
      give_up(name.c_str(), "this rank has no such communicator now; `init` makes one that is declared `later`");
    return at->second;
  }

  void close(const std::string& name, ncclResult_t (*how)(ncclComm_t), const char* what) {
    ncclComm_t c = comm(name);
    comms_.erase(name);
    nccl(how(c), what);
  }

  void play_group(const Statement& s) {
    nccl(ncclGroupStart(), "ncclGroupStart");
    play(s.body);
    nccl(ncclGroupEnd(), "ncclGroupEnd");
  }

  // Another thread of the program, with what this one has now.
  void play_beside(const Statement& s) {
    Rank twin(*this);
    twin.beside_.clear();
    beside_.push_back(std::make_shared<std::thread>([twin, &s]() mutable { twin.play(s.body); }));
  }

  void play_graph(const Statement& s) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    play(s.body);
    cuda(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
    cuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
    for (int64_t i = 0; i < s.number; i++) cuda(cudaGraphLaunch(ready, stream()), "cudaGraphLaunch");
  }

  void communicate(const Statement& s) {
    const Communicator& c = *scenario_.find(s.name);
    int peer = s.rank < 0 ? -1 : rank_in(c, s.rank);
    nccl(
        call(s, comm(s.name), peer, s.in_place ? in_place_send(s, c) : send_, s.in_place ? in_place_recv(s, c) : recv_),
        abi::find_function(s.fn)->name);
  }

  // NCCL's rules: a gather's input lies in its place in the output, a reduce-scatter's output in its place in the
  // input.
  void* in_place_send(const Statement& s, const Communicator& c) {
    return s.fn == abi::Fn::AllGather || s.fn == abi::Fn::Gather ? slice(s, c) : recv_;
  }
  void* in_place_recv(const Statement& s, const Communicator& c) {
    return s.fn == abi::Fn::ReduceScatter || s.fn == abi::Fn::Scatter ? slice(s, c) : recv_;
  }
  void* slice(const Statement& s, const Communicator& c) {
    return static_cast<char*>(recv_) +
           static_cast<size_t>(rank_in(c, scene_rank_)) * s.count * abi::dtype_size(s.dtype);
  }

  ncclResult_t call(const Statement& s, ncclComm_t comm, int peer, const void* send, void* recv) {
    auto type = static_cast<ncclDataType_t>(s.dtype);
    auto op = static_cast<ncclRedOp_t>(s.redop);
    switch (s.fn) {
      case abi::Fn::AllReduce:
        return ncclAllReduce(send, recv, s.count, type, op, comm, stream());
      case abi::Fn::Reduce:
        return ncclReduce(send, recv, s.count, type, op, peer, comm, stream());
      case abi::Fn::Broadcast:
        return ncclBroadcast(send, recv, s.count, type, peer, comm, stream());
      case abi::Fn::Bcast:
        return ncclBcast(recv, s.count, type, peer, comm, stream());
      case abi::Fn::AllGather:
        return ncclAllGather(send, recv, s.count, type, comm, stream());
      case abi::Fn::ReduceScatter:
        return ncclReduceScatter(send, recv, s.count, type, op, comm, stream());
      case abi::Fn::AlltoAll:
        return ncclAlltoAll(send, recv, s.count, type, comm, stream());
      case abi::Fn::Gather:
        return ncclGather(send, recv, s.count, type, peer, comm, stream());
      case abi::Fn::Scatter:
        return ncclScatter(send, recv, s.count, type, peer, comm, stream());
      case abi::Fn::Send:
        return ncclSend(send, s.count, type, peer, comm, stream());
      case abi::Fn::Recv:
        return ncclRecv(recv, s.count, type, peer, comm, stream());
      default:
        return ncclInvalidUsage;
    }
  }

  // An orderly end: all work done, communicators destroyed in the order of the file, children before their parents.
  void end() {
    line_ = 0;
    for (const std::shared_ptr<std::thread>& thread : beside_) thread->join();
    for (auto& [name, s] : streams_) cuda(cudaStreamSynchronize(s), "cudaStreamSynchronize");
    for (auto c = scenario_.communicators.rbegin(); c != scenario_.communicators.rend(); ++c)
      if (comms_.count(c->name)) close(c->name, ncclCommDestroy, "ncclCommDestroy");
  }

  Stage& stage_;
  const scenario::Scenario& scenario_;
  const int scene_rank_, world_rank_;
  std::map<std::string, ncclComm_t> comms_;
  std::map<std::string, cudaStream_t> streams_;
  std::string current_;
  void* send_ = nullptr;
  void* recv_ = nullptr;
  int64_t step_ = -1;
  int line_ = 0;
  int tolerant_ = 0;  // inside that many blocks of `try`
  std::vector<std::shared_ptr<std::thread>> beside_;
};

}  // namespace

void play_rank(Stage& stage, int scene_rank) { Rank(stage, scene_rank).play(); }

}  // namespace lockstep::scene
