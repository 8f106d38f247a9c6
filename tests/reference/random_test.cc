// SPDX-License-Identifier: MIT
//
// Random legal programs against a sequential oracle; see random_program.h. Each rank draws streams of its own for the
// operations, some of which it captures and launches as graphs, and moments at which it waits or sleeps; whatever runs
// too early, too late, or over another's data shows as a wrong byte.
//
// LOCKSTEP_TEST_SEEDS=N runs N programs a case, LOCKSTEP_TEST_SEED=S the one of a failure.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <utility>

#include "tests/reference/random_program.h"
#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

constexpr int kMaxRanks = 16;
constexpr size_t kStreams = 3;
constexpr unsigned kProgramsAJob = 25;

// Where every rank is, for the report of a program that does not end; shared with the children.
struct Whereabouts {
  std::atomic<unsigned> seed[kMaxRanks];
  std::atomic<int> step[kMaxRanks];  // -1: waits for the end
};
Whereabouts& whereabouts() {
  static auto* const the_one = static_cast<Whereabouts*>(
      mmap(nullptr, sizeof(Whereabouts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *the_one;
}

std::string rerun(unsigned seed) {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return "\nrun it again: LOCKSTEP_TEST_SEED=" + std::to_string(seed) +
         " reference_random_test --gtest_filter=" + test->test_suite_name() + "." + test->name();
}

struct Drawn {
  unsigned seed = 0;
  Program program;
  std::vector<std::array<uint64_t, kBuffers>> expected;  // hashes, by rank
};

Drawn draw_and_simulate(unsigned seed, const Shape& shape) {
  Drawn drawn{seed, draw(seed, shape), {}};
  for (const Memory& memory : simulate(drawn.program)) {
    auto& hashes = drawn.expected.emplace_back();
    for (size_t b = 0; b < kBuffers; ++b) hashes[b] = hash(memory[b].data(), memory[b].size());
  }
  return drawn;
}

// Work of a host function.
struct HostWork {
  uint8_t* at;
  size_t bytes;
  Kind kind;
  ncclDataType_t dtype;
  unsigned value;
  static void run(void* self) {
    const auto* const work = static_cast<HostWork*>(self);
    if (work->kind == Kind::add)
      add_to(work->at, work->bytes, work->value);
    else
      fill_exact(work->at, work->bytes, work->dtype, work->value);
  }
};

// What other operations on a buffer have to wait for.
struct Touched {
  cudaEvent_t written = nullptr;
  std::array<cudaEvent_t, kStreams> read{};  // by stream
};

class Runner {
 public:
  Runner(Rank& me, std::array<ncclComm_t, 2> comms, const Drawn& drawn)
      : me_(me),
        comms_(comms),
        program_(drawn.program),
        expected_(drawn.expected[static_cast<size_t>(me.rank)]),
        seed_(drawn.seed),
        mine_(drawn.seed * 977 + static_cast<unsigned>(me.rank)) {
    // A blocking one, a non-blocking one, and another of those or a default stream.
    for (size_t s = 0; s < own_streams_; ++s)
      EXPECT_EQ(cudaSuccess,
                cudaStreamCreateWithFlags(&streams_[s], s == 0 ? cudaStreamDefault : cudaStreamNonBlocking));
    if (seed_ % 4 == 2) streams_[2] = cudaStreamPerThread;
    for (Touched& buffer : touched_) {
      EXPECT_EQ(cudaSuccess, cudaEventCreateWithFlags(&buffer.written, cudaEventDisableTiming));
      for (cudaEvent_t& event : buffer.read) EXPECT_EQ(cudaSuccess, cudaEventCreate(&event));
    }
    for (size_t b = 0; b < kBuffers; ++b) {
      EXPECT_EQ(cudaSuccess, cudaMalloc(&buffers_[b], program_.length));
      const Bytes bytes = initial(me.rank, b, program_.length);
      std::copy(bytes.begin(), bytes.end(), buffers_[b]);
    }
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner() {
    for (size_t s = 0; s < own_streams_; ++s) EXPECT_EQ(cudaSuccess, cudaStreamDestroy(streams_[s]));
    for (const Touched& buffer : touched_) {
      EXPECT_EQ(cudaSuccess, cudaEventDestroy(buffer.written));
      for (const cudaEvent_t event : buffer.read) EXPECT_EQ(cudaSuccess, cudaEventDestroy(event));
    }
    for (uint8_t* const buffer : buffers_) EXPECT_EQ(cudaSuccess, cudaFree(buffer));
  }

  void run() {
    Whereabouts& here = whereabouts();
    const auto rank = static_cast<size_t>(me_.rank);
    here.seed[rank].store(seed_);
    for (size_t i = 0; i < program_.steps.size() && !::testing::Test::HasFatalFailure(); ++i) {
      here.step[rank].store(static_cast<int>(i));
      step(program_.steps[i]);
      dawdle();
    }
    here.step[rank].store(-1);
    for (const cudaStream_t stream : streams_) EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
    compare();
  }

 private:
  size_t below(size_t limit) { return mine_() % limit; }

  void dawdle() {
    switch (below(64)) {
      case 0:
        CUDA_OK(cudaDeviceSynchronize());
        break;
      case 1:
      case 2:
      case 3:
        CUDA_OK(cudaStreamSynchronize(streams_[below(kStreams)]));
        break;
      case 4:
      case 5:
        CUDA_OK(cudaEventSynchronize(touched_[below(kBuffers)].written));
        break;
      case 6:
      case 7:
        EXPECT_NE(cudaErrorInvalidValue, cudaStreamQuery(streams_[below(kStreams)]));
        break;
      case 8:
      case 9:
        std::this_thread::sleep_for(std::chrono::microseconds(below(300)));
        break;
      default:
        break;
    }
  }

  // This rank's rank in the operation's communicator; -1: it is not in it. What is not communication is done by all.
  int rank_in(const Operation& op) const {
    if (op.comm == 0 || !communicates(op.kind)) return me_.rank;
    const auto& members = program_.shape.second;
    const auto found = std::find(members.begin(), members.end(), me_.rank);
    return found == members.end() ? -1 : static_cast<int>(found - members.begin());
  }

  void step(const Step& operations) {
    std::vector<const Operation*> mine;
    std::vector<size_t> streams;
    for (const Operation& op : operations) {
      if (rank_in(op) < 0) continue;
      mine.push_back(&op);
      streams.push_back(below(kStreams));
      wait_for_buffers(op, streams.back());
    }
    if (may_be_captured(mine, streams))
      by_graph(mine, streams.front());
    else
      issue(mine, streams);
    if (::testing::Test::HasFatalFailure()) return;
    for (size_t i = 0; i < mine.size(); ++i) note_buffers(*mine[i], streams[i]);
  }

  void issue(const std::vector<const Operation*>& operations, const std::vector<size_t>& streams) {
    const bool group = operations.size() > 1;
    if (group) NCCL_OK(ncclGroupStart());
    for (size_t i = 0; i < operations.size(); ++i) {
      enqueue(*operations[i], streams_[streams[i]]);
      if (::testing::Test::HasFatalFailure()) return;
    }
    if (group) NCCL_OK(ncclGroupEnd());
  }

  // A rank may do by a graph what its peers call. The legacy stream cannot be captured, and a copy through memory that
  // is gone when the graph runs would be wrong.
  bool may_be_captured(const std::vector<const Operation*>& operations, const std::vector<size_t>& streams) {
    if (operations.empty() || below(6) != 0 || streams_[streams.front()] == nullptr) return false;
    return std::all_of(streams.begin(), streams.end(), [&](size_t s) { return s == streams.front(); }) &&
           std::none_of(operations.begin(), operations.end(),
                        [](const Operation* op) { return op->kind == Kind::copy_by_host; });
  }
  void by_graph(const std::vector<const Operation*>& operations, size_t stream) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_OK(cudaStreamBeginCapture(streams_[stream], cudaStreamCaptureModeThreadLocal));
    issue(operations, std::vector<size_t>(operations.size(), stream));
    CUDA_OK(cudaStreamEndCapture(streams_[stream], &graph));
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_OK(cudaGraphDestroy(graph));
    CUDA_OK(cudaGraphLaunch(executable, streams_[stream]));
    CUDA_OK(cudaGraphExecDestroy(executable));  // the launch goes on
  }

  void wait_for_buffers(const Operation& op, size_t stream) {
    CUDA_OK(cudaStreamWaitEvent(streams_[stream], touched_[op.src].written, 0));
    CUDA_OK(cudaStreamWaitEvent(streams_[stream], touched_[op.dst].written, 0));
    for (const cudaEvent_t read : touched_[op.dst].read) CUDA_OK(cudaStreamWaitEvent(streams_[stream], read, 0));
  }
  void note_buffers(const Operation& op, size_t stream) {
    CUDA_OK(cudaEventRecord(touched_[op.src].read[stream], streams_[stream]));
    CUDA_OK(cudaEventRecord(touched_[op.dst].written, streams_[stream]));
  }

  void enqueue(const Operation& op, cudaStream_t stream) {
    if (communicates(op.kind))
      NCCL_OK(op.messages.empty() ? collective(op, stream) : messages(op, stream));
    else
      alone(op, stream);
  }

  ncclResult_t collective(const Operation& op, cudaStream_t stream) {
    const int rank = rank_in(op);
    const ncclComm_t comm = comms_[static_cast<size_t>(op.comm)];
    const size_t block = op.count * size_of(op.dtype);
    const uint8_t* send = buffers_[op.src] + op.src_at;
    uint8_t* recv = buffers_[op.dst] + op.dst_at;
    const size_t own = static_cast<size_t>(rank) * block;
    const bool at_root = rank == op.root;
    if (op.in_place && (op.kind == Kind::all_gather || (op.kind == Kind::gather && at_root))) send += own;
    if (op.in_place && (op.kind == Kind::reduce_scatter || (op.kind == Kind::scatter && at_root))) recv += own;
    switch (op.kind) {
      case Kind::all_reduce:
        return ncclAllReduce(send, recv, op.count, op.dtype, op.op, comm, stream);
      case Kind::reduce:
        return ncclReduce(send, recv, op.count, op.dtype, op.op, op.root, comm, stream);
      case Kind::broadcast:
        return ncclBroadcast(send, recv, op.count, op.dtype, op.root, comm, stream);
      case Kind::all_gather:
        return ncclAllGather(send, recv, op.count, op.dtype, comm, stream);
      case Kind::reduce_scatter:
        return ncclReduceScatter(send, recv, op.count, op.dtype, op.op, comm, stream);
      case Kind::all_to_all:
        return ncclAlltoAll(send, recv, op.count, op.dtype, comm, stream);
      case Kind::gather:
        return ncclGather(send, recv, op.count, op.dtype, op.root, comm, stream);
      case Kind::scatter:
        return ncclScatter(send, recv, op.count, op.dtype, op.root, comm, stream);
      default:
        return ncclInternalError;
    }
  }

  ncclResult_t messages(const Operation& op, cudaStream_t stream) {
    const int rank = rank_in(op);
    const ncclComm_t comm = comms_[static_cast<size_t>(op.comm)];
    const bool group = op.kind == Kind::messages;
    if (group) ncclGroupStart();
    ncclResult_t result = ncclSuccess;
    for (const Message& m : op.messages) {
      if (m.from == rank && result == ncclSuccess)
        result = ncclSend(buffers_[op.src] + m.send_at, m.send_count, op.dtype, m.to, comm, stream);
      if (m.to == rank && result == ncclSuccess)
        result = ncclRecv(buffers_[op.dst] + m.recv_at, m.recv_count, op.dtype, m.from, comm, stream);
    }
    const ncclResult_t end = group ? ncclGroupEnd() : ncclSuccess;
    return result == ncclSuccess ? end : result;
  }

  void alone(const Operation& op, cudaStream_t stream) {
    const size_t bytes = op.count * size_of(op.dtype);
    uint8_t* const src = buffers_[op.src] + op.src_at;
    uint8_t* const dst = buffers_[op.dst] + op.dst_at;
    switch (op.kind) {
      case Kind::copy:
        CUDA_OK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream));
        break;
      case Kind::copy_by_host: {  // pageable memory may be used again as soon as the calls are back
        Bytes host(bytes);
        CUDA_OK(cudaMemcpyAsync(host.data(), src, bytes, cudaMemcpyDeviceToHost, stream));
        CUDA_OK(cudaMemcpyAsync(dst, host.data(), bytes, cudaMemcpyHostToDevice, stream));
        std::fill(host.begin(), host.end(), uint8_t{0xee});
        break;
      }
      case Kind::set:
        CUDA_OK(cudaMemsetAsync(dst, static_cast<int>(op.value), bytes, stream));
        break;
      default:
        work_.push_back({dst, bytes, op.kind, op.dtype, op.value + static_cast<unsigned>(me_.rank)});
        CUDA_OK(cudaLaunchHostFunc(stream, HostWork::run, &work_.back()));
        break;
    }
  }

  void compare() {
    for (size_t b = 0; b < kBuffers; ++b)
      if (hash(buffers_[b], program_.length) != expected_[b]) return tell_difference(b);
  }
  void tell_difference(size_t buffer) {
    const Bytes right = simulate(program_)[static_cast<size_t>(me_.rank)][buffer];
    size_t at = 0;
    while (at < right.size() && buffers_[buffer][at] == right[at]) ++at;
    std::string writers;
    for (const Step& step : program_.steps)
      for (const Operation& op : step)
        if (op.dst == buffer) writers += "\n  " + describe(op) + (step.size() > 1 ? " (in a group)" : "");
    FAIL() << "seed " << seed_ << ", rank " << me_.rank << " of " << me_.n << ", buffer " << buffer << ", byte " << at
           << " of " << right.size() << ": " << int{buffers_[buffer][at]} << ", expected " << int{right[at]}
           << "; what writes to the buffer:" << writers << rerun(seed_);
  }

  Rank& me_;
  const std::array<ncclComm_t, 2> comms_;
  const Program& program_;
  const std::array<uint64_t, kBuffers>& expected_;
  const unsigned seed_;
  const size_t own_streams_ = seed_ % 4 < 2 ? 3 : 2;
  std::mt19937 mine_;
  std::array<cudaStream_t, kStreams> streams_{};
  std::array<Touched, kBuffers> touched_{};
  std::array<uint8_t*, kBuffers> buffers_{};
  std::deque<HostWork> work_;
};

// The second communicator: two thirds of the ranks, in the opposite order; of three ranks or fewer, all.
Shape shape_of(int ranks) {
  Shape shape{ranks, {}};
  for (int rank = ranks - 1; rank >= 0; --rank)
    if (ranks <= 3 || rank % 3 != 2) shape.second.push_back(rank);
  return shape;
}

void run_programs(As as, const Shape& shape, unsigned first, unsigned count) {
  std::vector<Drawn> programs;
  for (unsigned seed = first; seed < first + count; ++seed) programs.push_back(draw_and_simulate(seed, shape));
  ncclUniqueId second_id;
  NCCL_OK(ncclGetUniqueId(&second_id));
  run_job(
      as, shape.ranks,
      [&](Rank& me) {
        const auto found = std::find(shape.second.begin(), shape.second.end(), me.rank);
        std::array<ncclComm_t, 2> comms{me.comm, nullptr};
        if (found != shape.second.end())
          NCCL_OK(ncclCommInitRank(&comms[1], static_cast<int>(shape.second.size()), second_id,
                                   static_cast<int>(found - shape.second.begin())));
        for (size_t i = 0; i < programs.size() && !::testing::Test::HasFatalFailure(); ++i)
          Runner(me, comms, programs[i]).run();
        if (!::testing::Test::HasFatalFailure() && comms[1] != nullptr) NCCL_OK(ncclCommDestroy(comms[1]));
      },
      milliseconds(300'000));
  if (!::testing::Test::HasFailure()) return;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    std::fprintf(stderr, "rank %d was last seen in seed %u, step %d\n", rank, whereabouts().seed[r].load(),
                 whereabouts().step[r].load());
  }
}

class RandomPrograms : public ::testing::TestWithParam<std::pair<As, int>> {};

TEST_P(RandomPrograms, ComputeWhatASequenceComputes) {
  const auto [as, n] = GetParam();
  const char* const one = std::getenv("LOCKSTEP_TEST_SEED");
  const char* const many = std::getenv("LOCKSTEP_TEST_SEEDS");
  const unsigned first = one != nullptr ? static_cast<unsigned>(std::atoi(one)) : 0;
  const unsigned otherwise = kThreadSanitizer ? 8 : 35;
  const unsigned seeds = one != nullptr ? 1 : many != nullptr ? static_cast<unsigned>(std::atoi(many)) : otherwise;
  setenv("LOCKSTEP_HOST_DEVICES", "16", 1);  // one for each: a rank's device-wide waits must not wait for its peers
  for (unsigned at = 0; at < seeds && !HasFailure(); at += kProgramsAJob)
    run_programs(as, shape_of(n), first + at, std::min(kProgramsAJob, seeds - at));
  unsetenv("LOCKSTEP_HOST_DEVICES");
}

INSTANTIATE_TEST_SUITE_P(Ranks, RandomPrograms,
                         ::testing::Values(std::pair(As::processes, 2), std::pair(As::processes, 5),
                                           std::pair(As::processes, 16), std::pair(As::pairs, 6),
                                           std::pair(As::threads, 3), std::pair(As::threads, 8),
                                           std::pair(As::threads, 16)),
                         [](const auto& each) {
                           return std::string(name_of(each.param.first)) + std::to_string(each.param.second);
                         });

}  // namespace
}  // namespace lockstep::test
