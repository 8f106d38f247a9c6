// SPDX-License-Identifier: MIT
//
// Random legal programs against a sequential oracle: two communicators, three streams, groups, collectives, messages,
// copies, events and host functions. Every rank draws the same operations, and streams of its own for them. Operations
// that touch the same buffer are ordered by events, nothing else is; so whatever runs too early, too late, or over
// another's data shows as a wrong number.

#include <array>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

constexpr size_t kBuffers = 7;
constexpr int kOperations = 80;

enum class Kind { all_reduce, broadcast, all_gather, reduce_scatter, shift, copy, add, count };

struct Operation {
  Kind kind;
  size_t src;
  size_t dst;
  int comm;
  int root;
  bool opens_group;  // this one and the next, which shares no buffer with it
};

struct Program {
  size_t length;  // of every buffer
  std::vector<Operation> operations;
};

bool communicates(const Operation& op) { return op.kind <= Kind::shift; }

Program draw(unsigned seed, int n) {
  std::mt19937 random(seed);
  const auto below = [&](size_t limit) { return random() % limit; };
  Program program;
  const size_t lengths[] = {8, 200, 3000, 20000};
  program.length = static_cast<size_t>(n) * (1 + below(lengths[below(4)]) / static_cast<size_t>(n));
  for (int i = 0; i < kOperations; ++i) {
    Operation op{};
    op.kind = static_cast<Kind>(below(static_cast<size_t>(Kind::count)));
    op.src = below(kBuffers);
    op.dst = (op.src + 1 + below(kBuffers - 1)) % kBuffers;
    op.comm = static_cast<int>(below(2));
    op.root = static_cast<int>(below(static_cast<size_t>(n)));
    if (!program.operations.empty()) {
      Operation& before = program.operations.back();
      const bool apart = before.src != op.src && before.src != op.dst && before.dst != op.src && before.dst != op.dst;
      const bool free = program.operations.size() < 2 || !program.operations[program.operations.size() - 2].opens_group;
      before.opens_group = apart && free && communicates(before) && communicates(op) && below(2) == 0;
    }
    program.operations.push_back(op);
  }
  return program;
}

using Buffers = std::vector<std::vector<uint32_t>>;  // of one rank

uint32_t initial(int rank, size_t buffer, size_t i) {
  return static_cast<uint32_t>(rank + 1) * 1000003u + static_cast<uint32_t>(buffer * 7919 + i * 31);
}

// What the operation does to all ranks at once.
void simulate(const Operation& op, std::vector<Buffers>& ranks) {
  const size_t n = ranks.size();
  const size_t length = ranks[0][0].size();
  const size_t part = length / n;
  std::vector<std::vector<uint32_t>> src;
  for (const Buffers& rank : ranks) src.push_back(rank[op.src]);
  for (size_t r = 0; r < n; ++r) {
    std::vector<uint32_t>& dst = ranks[r][op.dst];
    const auto sum_at = [&](size_t i) {
      uint32_t sum = 0;
      for (size_t p = 0; p < n; ++p) sum += src[p][i];
      return sum;
    };
    for (size_t i = 0; i < length; ++i) {
      switch (op.kind) {
        case Kind::all_reduce:
          dst[i] = sum_at(i);
          break;
        case Kind::broadcast:
          dst[i] = src[static_cast<size_t>(op.root)][i];
          break;
        case Kind::all_gather:
          dst[i] = src[i / part][i % part];
          break;
        case Kind::reduce_scatter:
          if (i < part) dst[i] = sum_at(r * part + i);
          break;
        case Kind::shift:
          dst[i] = src[(r + n - 1) % n][i];
          break;
        case Kind::copy:
          dst[i] = src[r][i];
          break;
        case Kind::add:
          dst[i] += static_cast<uint32_t>(r + 1);
          break;
        case Kind::count:
          break;
      }
    }
  }
}

struct Add {
  uint32_t* at;
  size_t length;
  uint32_t value;
  static void run(void* self) {
    const auto* add = static_cast<Add*>(self);
    for (size_t i = 0; i < add->length; ++i) add->at[i] += add->value;
  }
};

class Runner {
 public:
  Runner(Rank& me, ncclComm_t second) : me_(me), comms_{me.comm, second} {
    for (size_t s = 0; s < streams_.size(); ++s)
      EXPECT_EQ(cudaSuccess,
                cudaStreamCreateWithFlags(&streams_[s], s == 0 ? cudaStreamDefault : cudaStreamNonBlocking));
    for (cudaEvent_t& event : touched_)
      EXPECT_EQ(cudaSuccess, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner() {
    for (cudaStream_t stream : streams_) EXPECT_EQ(cudaSuccess, cudaStreamDestroy(stream));
    for (cudaEvent_t event : touched_) EXPECT_EQ(cudaSuccess, cudaEventDestroy(event));
  }

  void run(unsigned seed) {
    const Program program = draw(seed, me_.n);
    mine_.seed(seed * 977 + static_cast<unsigned>(me_.rank));
    length_ = program.length;
    DeviceBuffer<uint32_t> memory(kBuffers * length_);
    data_ = memory.data;
    for (size_t b = 0; b < kBuffers; ++b)
      for (size_t i = 0; i < length_; ++i) at(b)[i] = initial(me_.rank, b, i);
    adds_.clear();
    adds_.reserve(program.operations.size());
    for (size_t i = 0; i < program.operations.size(); ++i) {
      const Operation& op = program.operations[i];
      if (!op.opens_group) {
        together({&op});
        continue;
      }
      together({&op, &program.operations[i + 1]});
      ++i;
    }
    for (cudaStream_t stream : streams_) EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
    compare(seed, program);
  }

 private:
  uint32_t* at(size_t buffer) { return data_ + buffer * length_; }

  void together(const std::vector<const Operation*>& group) {
    std::vector<cudaStream_t> streams;
    for (const Operation* op : group) {
      streams.push_back(streams_[mine_() % streams_.size()]);
      for (const size_t b : {op->src, op->dst}) CUDA_OK(cudaStreamWaitEvent(streams.back(), touched_[b], 0));
    }
    if (mine_() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(mine_() % 500));
    if (group.size() > 1) NCCL_OK(ncclGroupStart());
    for (size_t i = 0; i < group.size(); ++i) enqueue(*group[i], streams[i]);
    if (group.size() > 1) NCCL_OK(ncclGroupEnd());
    for (size_t i = 0; i < group.size(); ++i)
      for (const size_t b : {group[i]->src, group[i]->dst}) CUDA_OK(cudaEventRecord(touched_[b], streams[i]));
    if (mine_() % 16 == 0) CUDA_OK(cudaStreamSynchronize(streams.back()));
  }

  void enqueue(const Operation& op, cudaStream_t stream) {
    const ncclComm_t comm = comms_[static_cast<size_t>(op.comm)];
    const size_t part = length_ / static_cast<size_t>(me_.n);
    uint32_t* const src = at(op.src);
    uint32_t* const dst = at(op.dst);
    switch (op.kind) {
      case Kind::all_reduce:
        NCCL_OK(ncclAllReduce(src, dst, length_, ncclUint32, ncclSum, comm, stream));
        break;
      case Kind::broadcast:
        NCCL_OK(ncclBroadcast(src, dst, length_, ncclUint32, op.root, comm, stream));
        break;
      case Kind::all_gather:
        NCCL_OK(ncclAllGather(src, dst, part, ncclUint32, comm, stream));
        break;
      case Kind::reduce_scatter:
        NCCL_OK(ncclReduceScatter(src, dst, part, ncclUint32, ncclSum, comm, stream));
        break;
      case Kind::shift:
        NCCL_OK(ncclGroupStart());
        NCCL_OK(ncclRecv(dst, length_, ncclUint32, (me_.rank + me_.n - 1) % me_.n, comm, stream));
        NCCL_OK(ncclSend(src, length_, ncclUint32, (me_.rank + 1) % me_.n, comm, stream));
        NCCL_OK(ncclGroupEnd());
        break;
      case Kind::copy:
        CUDA_OK(cudaMemcpyAsync(dst, src, length_ * 4, cudaMemcpyDeviceToDevice, stream));
        break;
      case Kind::add:
        adds_.push_back({dst, length_, static_cast<uint32_t>(me_.rank + 1)});
        CUDA_OK(cudaLaunchHostFunc(stream, Add::run, &adds_.back()));
        break;
      case Kind::count:
        break;
    }
  }

  void compare(unsigned seed, const Program& program) {
    std::vector<Buffers> ranks(static_cast<size_t>(me_.n), Buffers(kBuffers, std::vector<uint32_t>(length_)));
    for (size_t r = 0; r < ranks.size(); ++r)
      for (size_t b = 0; b < kBuffers; ++b)
        for (size_t i = 0; i < length_; ++i) ranks[r][b][i] = initial(static_cast<int>(r), b, i);
    for (const Operation& op : program.operations) simulate(op, ranks);
    for (size_t b = 0; b < kBuffers; ++b)
      for (size_t i = 0; i < length_; ++i)
        ASSERT_EQ(ranks[static_cast<size_t>(me_.rank)][b][i], at(b)[i])
            << "seed " << seed << " rank " << me_.rank << " buffer " << b << " element " << i << " of " << length_;
  }

  Rank& me_;
  const std::array<ncclComm_t, 2> comms_;
  std::array<cudaStream_t, 3> streams_{};
  std::array<cudaEvent_t, kBuffers> touched_{};
  std::mt19937 mine_;
  size_t length_ = 0;
  uint32_t* data_ = nullptr;
  std::vector<Add> adds_;
};

class RandomPrograms : public ::testing::TestWithParam<std::pair<As, int>> {};

TEST_P(RandomPrograms, ComputeWhatASequenceComputes) {
  const auto [as, n] = GetParam();
  const char* const wanted = std::getenv("LOCKSTEP_TEST_SEEDS");
  const unsigned seeds = wanted != nullptr ? static_cast<unsigned>(std::atoi(wanted)) : 25;
  ncclUniqueId second_id;
  NCCL_OK(ncclGetUniqueId(&second_id));
  run_job(
      as, n,
      [&](Rank& me) {
        ncclComm_t second = nullptr;
        NCCL_OK(ncclCommInitRank(&second, me.n, second_id, me.rank));
        {
          Runner runner(me, second);
          for (unsigned seed = 0; seed < seeds && !::testing::Test::HasFatalFailure(); ++seed)
            runner.run(seed * 31 + static_cast<unsigned>(me.n));
        }
        NCCL_OK(ncclCommDestroy(second));
      },
      milliseconds(wanted != nullptr ? 3600000 : 50000));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RandomPrograms,
                         ::testing::Values(std::pair(As::processes, 2), std::pair(As::processes, 4),
                                           std::pair(As::threads, 3), std::pair(As::threads, 6)),
                         [](const auto& each) {
                           return std::string(name_of(each.param.first)) + std::to_string(each.param.second);
                         });

}  // namespace
}  // namespace lockstep::test
