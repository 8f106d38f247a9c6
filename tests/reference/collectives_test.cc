// SPDX-License-Identifier: MIT
//
// What collectives compute: every function, type and operator, against a loop over the ranks' inputs, with ranks as
// processes and as threads, from one element to several times what one step moves, in place and not, from CUDA memory
// and from memory that peers cannot see.

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

template <class T>
constexpr ncclDataType_t kType = ncclNumTypes;
template <>
constexpr ncclDataType_t kType<int8_t> = ncclInt8;
template <>
constexpr ncclDataType_t kType<uint8_t> = ncclUint8;
template <>
constexpr ncclDataType_t kType<int32_t> = ncclInt32;
template <>
constexpr ncclDataType_t kType<uint32_t> = ncclUint32;
template <>
constexpr ncclDataType_t kType<int64_t> = ncclInt64;
template <>
constexpr ncclDataType_t kType<uint64_t> = ncclUint64;
template <>
constexpr ncclDataType_t kType<float> = ncclFloat32;
template <>
constexpr ncclDataType_t kType<double> = ncclFloat64;

template <class T>
T value(int rank, size_t i) {
  const auto x = static_cast<uint64_t>(rank + 1) * 2654435761u + i * 40503u + 12345u;
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(static_cast<double>(x % 2003) / 7.0 - 100.0);
  else
    return static_cast<T>(x ^ (x >> 7));
}

template <class T>
T combine(ncclRedOp_t op, T a, T b) {
  using U = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  switch (op) {
    case ncclProd:
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
}
// In rank order, as the host runtime promises.
template <class T>
T reduced(ncclRedOp_t op, int n, size_t i) {
  const auto input = [&](int r) {
    if constexpr (std::is_floating_point_v<T>)
      if (op == ncclAvg) return static_cast<T>(value<T>(r, i) * static_cast<T>(1.0 / n));
    return value<T>(r, i);
  };
  T result = input(0);
  for (int r = 1; r < n; ++r) result = combine(op, result, input(r));
  if constexpr (std::is_integral_v<T>)
    if (op == ncclAvg) result = static_cast<T>(result / static_cast<T>(n));
  return result;
}

template <class T>
void fill(T* data, size_t count, int rank, size_t first = 0) {
  for (size_t i = 0; i < count; ++i) data[i] = value<T>(rank, first + i);
}
template <class T, class Expected>
void expect(const char* what, const T* data, size_t count, Expected expected) {
  for (size_t i = 0; i < count; ++i) {
    const T want = expected(i);
    if (std::memcmp(&want, &data[i], sizeof want) == 0) continue;
    ADD_FAILURE() << what << " count " << count << " differs first at " << i << ": " << +data[i] << ", expected "
                  << +want;
    return;
  }
}

// A send and a receive buffer of each sort; `in_place` lays one into the other as the function asks.
enum class Buffers { device, in_place, pageable };

template <class T>
class Pair {
 public:
  Pair(Buffers kind, size_t send_count, size_t recv_count, size_t send_at, size_t recv_at) {
    const size_t all = std::max(send_at + send_count, recv_at + recv_count);
    if (kind == Buffers::pageable) {
      memory_.resize((send_count + recv_count) * sizeof(T) + 64);
      send = reinterpret_cast<T*>(memory_.data());
      recv = send + send_count;
    } else if (kind == Buffers::in_place) {
      EXPECT_EQ(cudaSuccess, cudaMalloc(&base_, all * sizeof(T)));
      send = base_ + send_at;
      recv = base_ + recv_at;
    } else {
      EXPECT_EQ(cudaSuccess, cudaMalloc(&base_, (send_count + recv_count) * sizeof(T)));
      send = base_;
      recv = base_ + send_count;
    }
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() { EXPECT_EQ(cudaSuccess, cudaFree(base_)); }
  T* send = nullptr;
  T* recv = nullptr;

 private:
  T* base_ = nullptr;
  std::vector<char> memory_;
};

template <class T>
void all_reduce(Rank& me, size_t count, ncclRedOp_t op, Buffers kind) {
  Pair<T> buffers(kind, count, count, 0, 0);
  fill(buffers.send, count, me.rank);
  NCCL_OK(ncclAllReduce(buffers.send, buffers.recv, count, kType<T>, op, me.comm, me.stream));
  me.sync();
  expect("AllReduce", buffers.recv, count, [&](size_t i) { return reduced<T>(op, me.n, i); });
}

template <class T>
void reduce(Rank& me, size_t count, ncclRedOp_t op, Buffers kind) {
  const int root = static_cast<int>(count) % me.n;
  Pair<T> buffers(kind, count, count, 0, 0);
  fill(buffers.send, count, me.rank);
  NCCL_OK(ncclReduce(buffers.send, buffers.recv, count, kType<T>, op, root, me.comm, me.stream));
  me.sync();
  if (me.rank == root) expect("Reduce", buffers.recv, count, [&](size_t i) { return reduced<T>(op, me.n, i); });
}

template <class T>
void reduce_scatter(Rank& me, size_t count, ncclRedOp_t op, Buffers kind) {
  const size_t mine = count * static_cast<size_t>(me.rank);
  Pair<T> buffers(kind, count * static_cast<size_t>(me.n), count, 0, mine);
  fill(buffers.send, count * static_cast<size_t>(me.n), me.rank);
  NCCL_OK(ncclReduceScatter(buffers.send, buffers.recv, count, kType<T>, op, me.comm, me.stream));
  me.sync();
  expect("ReduceScatter", buffers.recv, count, [&](size_t i) { return reduced<T>(op, me.n, mine + i); });
}

template <class T>
void broadcast(Rank& me, size_t count, Buffers kind) {
  const int root = static_cast<int>(count + 1) % me.n;
  Pair<T> buffers(kind, count, count, 0, 0);
  fill(buffers.send, count, me.rank);
  NCCL_OK(ncclBroadcast(buffers.send, buffers.recv, count, kType<T>, root, me.comm, me.stream));
  me.sync();
  expect("Broadcast", buffers.recv, count, [&](size_t i) { return value<T>(root, i); });
  NCCL_OK(ncclBcast(buffers.recv, count, kType<T>, 0, me.comm, me.stream));
  me.sync();
  expect("Bcast", buffers.recv, count, [&](size_t i) { return value<T>(root, i); });
}

template <class T>
void all_gather(Rank& me, size_t count, Buffers kind) {
  const auto n = static_cast<size_t>(me.n);
  Pair<T> buffers(kind, count, count * n, count * static_cast<size_t>(me.rank), 0);
  fill(buffers.send, count, me.rank);
  NCCL_OK(ncclAllGather(buffers.send, buffers.recv, count, kType<T>, me.comm, me.stream));
  me.sync();
  expect("AllGather", buffers.recv, count * n,
         [&](size_t i) { return value<T>(static_cast<int>(i / count), i % count); });
}

template <class T>
void everything(Rank& me, size_t count) {
  for (const Buffers kind : {Buffers::device, Buffers::in_place, Buffers::pageable}) {
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
      all_reduce<T>(me, count, op, kind);
      reduce<T>(me, count, op, kind);
      reduce_scatter<T>(me, count, op, kind);
    }
    broadcast<T>(me, count, kind);
    all_gather<T>(me, count, kind);
  }
}

class Collectives : public ::testing::TestWithParam<std::pair<As, int>> {};

TEST_P(Collectives, ComputeWhatALoopComputes) {
  const auto [as, n] = GetParam();
  run_job(as, n, [](Rank& me) {
    for (const size_t count : {1, 3, 255, 257, 1031}) {
      everything<int8_t>(me, count);
      everything<uint8_t>(me, count);
      everything<int32_t>(me, count);
      everything<uint32_t>(me, count);
      everything<int64_t>(me, count);
      everything<uint64_t>(me, count);
      everything<float>(me, count);
      everything<double>(me, count);
    }
    everything<float>(me, kThreadSanitizer ? 15001 : 150001);
    everything<int64_t>(me, kThreadSanitizer ? 7001 : 70001);
  });
}

TEST_P(Collectives, GiveTheSameBitsOnAllRanks) {
  const auto [as, n] = GetParam();
  run_job(as, n, [](Rank& me) {
    const size_t count = 30011;
    DeviceBuffer<float> data(count);
    DeviceBuffer<float> all(count * static_cast<size_t>(me.n));
    for (size_t i = 0; i < count; ++i) data[i] = 1.0f / static_cast<float>(i + 1 + static_cast<size_t>(me.rank) * 7919);
    NCCL_OK(ncclAllReduce(data.data, data.data, count, ncclFloat, ncclSum, me.comm, me.stream));
    NCCL_OK(ncclAllGather(data.data, all.data, count, ncclFloat, me.comm, me.stream));
    me.sync();
    for (int r = 0; r < me.n; ++r)
      EXPECT_EQ(0, std::memcmp(data.data, all.data + count * static_cast<size_t>(r), count * sizeof(float))) << r;
  });
}

TEST_P(Collectives, OfCountZeroNeedNobody) {
  const auto [as, n] = GetParam();
  run_job(as, n, [](Rank& me) {
    DeviceBuffer<int> data(8);
    data[0] = 1;
    if (me.rank == 0)  // the others never call it
      NCCL_OK(ncclAllReduce(data.data, data.data, 0, ncclInt, ncclSum, me.comm, me.stream));
    NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(me.n, data[0]);
  });
}

TEST_P(Collectives, AsMessagesExchangeBlocks) {
  const auto [as, n] = GetParam();
  run_job(as, n, [](Rank& me) {
    const auto ranks = static_cast<size_t>(me.n);
    for (const size_t count : {1, 1000, 90001}) {
      const size_t all = count * ranks;
      DeviceBuffer<int> send(all);
      DeviceBuffer<int> recv(all);
      fill(send.data, all, me.rank);
      NCCL_OK(ncclAlltoAll(send.data, recv.data, count, ncclInt, me.comm, me.stream));
      me.sync();
      expect("AlltoAll", recv.data, all, [&](size_t i) {
        return value<int>(static_cast<int>(i / count), count * static_cast<size_t>(me.rank) + i % count);
      });
      const int root = me.n - 1;
      std::memset(recv.data, 0, all * sizeof(int));
      NCCL_OK(ncclGather(send.data, recv.data, count, ncclInt, root, me.comm, me.stream));
      me.sync();
      if (me.rank == root)
        expect("Gather", recv.data, all, [&](size_t i) { return value<int>(static_cast<int>(i / count), i % count); });
      std::memset(recv.data, 0, all * sizeof(int));
      NCCL_OK(ncclScatter(send.data, recv.data, count, ncclInt, root, me.comm, me.stream));
      me.sync();
      expect("Scatter", recv.data, count,
             [&](size_t i) { return value<int>(root, count * static_cast<size_t>(me.rank) + i); });
    }
  });
}

// Half types ride as bits; the arithmetic has a test of its own.
TEST_P(Collectives, ReduceHalfTypes) {
  const auto [as, n] = GetParam();
  run_job(as, n, [](Rank& me) {
    DeviceBuffer<uint16_t> data(5000);
    std::fill(data.data, data.data + 5000, static_cast<uint16_t>(0x3c00));  // 1.0 in fp16
    NCCL_OK(ncclAllReduce(data.data, data.data, 5000, ncclFloat16, ncclMax, me.comm, me.stream));
    me.sync();
    expect("fp16", data.data, 5000, [](size_t) { return static_cast<uint16_t>(0x3c00); });
    std::fill(data.data, data.data + 5000, static_cast<uint16_t>(0x3f80));  // 1.0 in bf16
    NCCL_OK(ncclAllReduce(data.data, data.data, 5000, ncclBfloat16, ncclAvg, me.comm, me.stream));
    me.sync();
    if (me.n == 2 || me.n == 4) expect("bf16", data.data, 5000, [](size_t) { return static_cast<uint16_t>(0x3f80); });
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives,
                         ::testing::Values(std::pair(As::processes, 1), std::pair(As::processes, 2),
                                           std::pair(As::processes, 3), std::pair(As::processes, 5),
                                           std::pair(As::threads, 2), std::pair(As::threads, 4),
                                           std::pair(As::threads, 7)),
                         [](const auto& each) {
                           return std::string(name_of(each.param.first)) + std::to_string(each.param.second);
                         });

// Some ranks share a process, some do not: two processes of two threads each.
TEST(Collectives, RunOverThreadsAndProcessesMixed) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  std::vector<Child> children;
  for (int p = 0; p < 2; ++p)
    children.emplace_back([&, p] {
      std::vector<std::thread> threads;
      for (int t = 0; t < 2; ++t)
        threads.emplace_back([&, t] {
          Rank me(p * 2 + t, 4, id);
          for (const size_t count : {10, 5000, 150001}) everything<float>(me, count);
          me.close();
        });
      for (auto& thread : threads) thread.join();
    });
  expect_all_end_well(children);
}

TEST(Collectives, RefuseWhatTheyCannotDo) {
  run_job(As::processes, 1, [](Rank& me) {
    DeviceBuffer<char> data(64);
    const auto all_reduce_of = [&](ncclDataType_t type, ncclRedOp_t op) {
      return ncclAllReduce(data.data, data.data, 4, type, op, me.comm, me.stream);
    };
    EXPECT_EQ(ncclInvalidArgument, all_reduce_of(static_cast<ncclDataType_t>(13), ncclSum));
    EXPECT_STREQ("AllReduce : invalid type 13", ncclGetLastError(me.comm));
    EXPECT_EQ(ncclInvalidArgument, all_reduce_of(ncclFloat, static_cast<ncclRedOp_t>(7)));
    EXPECT_STREQ("AllReduce : reduction operation 7 unknown to this communicator", ncclGetLastError(me.comm));
    EXPECT_EQ(ncclInvalidArgument, ncclBroadcast(data.data, data.data, 4, ncclFloat, 1, me.comm, me.stream));
    EXPECT_STREQ("Broadcast : invalid root 1 (root should be in the 0..1 range)", ncclGetLastError(me.comm));
    EXPECT_EQ(ncclInvalidArgument, ncclAllReduce(data.data, data.data, 4, ncclFloat, ncclSum, nullptr, me.stream));
    EXPECT_STREQ("AllReduce : comm argument is NULL", ncclGetLastError(me.comm));
    EXPECT_EQ(ncclSuccess, all_reduce_of(ncclFloat, ncclSum));
    me.sync();
  });
}

}  // namespace
}  // namespace lockstep::test
