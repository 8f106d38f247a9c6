// SPDX-License-Identifier: MIT
//
// The life of communicators: groups, splitting, many of them at once, and their end. What is left after it is
// leak_test.cc's business.

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

void in_child(const std::function<void()>& body) {
  std::vector<Child> child;
  child.emplace_back(body);
  expect_all_end_well(child);
}

class Groups : public ::testing::TestWithParam<As> {};

// One group over three streams acts as if it stood in each of them.
TEST_P(Groups, OrderAllTheirStreams) {
  run_job(GetParam(), 2, [](Rank& me) {
    cudaStream_t other = nullptr;
    CUDA_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    DeviceBuffer<int> data(4);
    std::memset(data.data, 0, 16);
    struct Late {
      int* at;
      int value;
    } late{&data[1], 10 + me.rank};
    CUDA_OK(cudaLaunchHostFunc(
        other,
        [](void* l) {
          std::this_thread::sleep_for(milliseconds(40));
          *static_cast<Late*>(l)->at = static_cast<Late*>(l)->value;
        },
        &late));
    data[0] = me.rank + 1;
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllReduce(&data[0], &data[0], 1, ncclInt, ncclSum, me.comm, me.stream));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllReduce(&data[1], &data[1], 1, ncclInt, ncclSum, me.comm, other));
    NCCL_OK(ncclGroupEnd());
    EXPECT_EQ(me.rank + 1, data[0]);  // nothing starts before the outermost end
    NCCL_OK(ncclGroupEnd());
    CUDA_OK(cudaMemcpyAsync(&data[2], &data[1], sizeof(int), cudaMemcpyDeviceToDevice, me.stream));
    CUDA_OK(cudaMemcpyAsync(&data[3], &data[0], sizeof(int), cudaMemcpyDeviceToDevice, other));
    me.sync();
    CUDA_OK(cudaStreamSynchronize(other));
    EXPECT_EQ(21, data[2]);
    EXPECT_EQ(3, data[3]);
    CUDA_OK(cudaStreamDestroy(other));
  });
}

TEST_P(Groups, FailAsAWhole) {
  run_job(GetParam(), 2, [](Rank& me) {
    DeviceBuffer<int> data(1);
    data[0] = 1;
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    EXPECT_EQ(ncclInvalidArgument, ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, nullptr, me.stream));
    EXPECT_EQ(ncclInvalidArgument, ncclGroupEnd());
    me.sync();
    EXPECT_EQ(1, data[0]);  // the valid call was dropped too
    NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    me.sync();
    EXPECT_EQ(2, data[0]);
    EXPECT_EQ(ncclInvalidUsage, ncclGroupEnd());
    EXPECT_STREQ("ncclGroupEnd: not in a group call.", ncclGetLastError(nullptr));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclGroupEnd());
  });
}

// Operations of one communicator keep their order whatever streams they are given.
TEST_P(Groups, AreNotNeededForOrderAcrossStreams) {
  run_job(GetParam(), 2, [](Rank& me) {
    std::vector<cudaStream_t> streams(3);
    for (cudaStream_t& s : streams) CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    DeviceBuffer<int> data(300);
    for (size_t i = 0; i < 300; ++i) data[i] = static_cast<int>(i);
    for (size_t i = 0; i < 300; ++i)  // another stream on each rank, the same order
      NCCL_OK(ncclAllReduce(&data[i], &data[i], 1, ncclInt, ncclSum, me.comm,
                            streams[(i * static_cast<size_t>(me.rank + 1)) % 3]));
    CUDA_OK(cudaDeviceSynchronize());
    for (size_t i = 0; i < 300; ++i) ASSERT_EQ(static_cast<int>(2 * i), data[i]) << i;
    for (const cudaStream_t s : streams) CUDA_OK(cudaStreamDestroy(s));
  });
}

TEST_P(Groups, SplitByColorAndKey) {
  run_job(GetParam(), 5, [](Rank& me) {
    for (int round = 0; round < 3; ++round) {
      const int color = me.rank == 4 ? NCCL_SPLIT_NOCOLOR : me.rank % 2;
      ncclComm_t part = nullptr;
      NCCL_OK(ncclCommSplit(me.comm, color, -me.rank, &part, nullptr));
      if (color == NCCL_SPLIT_NOCOLOR) {
        EXPECT_EQ(nullptr, part);
        continue;
      }
      int rank = -1;
      int size = -1;
      NCCL_OK(ncclCommUserRank(part, &rank));
      NCCL_OK(ncclCommCount(part, &size));
      EXPECT_EQ(2, size);
      EXPECT_EQ(me.rank < 2 ? 1 : 0, rank);  // the higher old rank has the smaller key
      DeviceBuffer<int> data(1);
      data[0] = me.rank;
      NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, part, me.stream));
      me.sync();
      EXPECT_EQ(color == 0 ? 2 : 4, data[0]);
      NCCL_OK(ncclCommDestroy(part));
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Groups, ::testing::Values(As::processes, As::threads),
                         [](const auto& each) { return std::string(name_of(each.param)); });

// All ranks on one thread: everything in groups.
TEST(OneThread, DrivesManyRanks) {
  in_child([] {
    constexpr int kRanks = 6;
    ncclComm_t comms[kRanks];
    const int devices[kRanks] = {5, 4, 3, 2, 1, 0};
    NCCL_OK(ncclCommInitAll(comms, kRanks, devices));
    std::vector<int*> data(kRanks);
    for (int r = 0; r < kRanks; ++r) {
      int device = -1;
      int rank = -1;
      NCCL_OK(ncclCommCuDevice(comms[r], &device));
      NCCL_OK(ncclCommUserRank(comms[r], &rank));
      EXPECT_EQ(devices[r], device);
      EXPECT_EQ(r, rank);
      CUDA_OK(cudaSetDevice(devices[r]));
      CUDA_OK(cudaMalloc(&data[static_cast<size_t>(r)], 4 * 100000));
      for (int i = 0; i < 100000; ++i) data[static_cast<size_t>(r)][i] = r + i;
    }
    NCCL_OK(ncclGroupStart());
    for (int r = 0; r < kRanks; ++r)
      NCCL_OK(ncclAllReduce(data[static_cast<size_t>(r)], data[static_cast<size_t>(r)], 100000, ncclInt, ncclSum,
                            comms[r],
                            nullptr));  // the null stream of the communicator's device
    NCCL_OK(ncclGroupEnd());
    for (int r = 0; r < kRanks; ++r) {
      CUDA_OK(cudaSetDevice(devices[r]));
      CUDA_OK(cudaDeviceSynchronize());
      EXPECT_EQ(15 + 6 * 99999, data[static_cast<size_t>(r)][99999]);
    }
    ncclComm_t parts[kRanks];
    NCCL_OK(ncclGroupStart());
    for (int r = 0; r < kRanks; ++r) NCCL_OK(ncclCommSplit(comms[r], r / 3, r, &parts[r], nullptr));
    NCCL_OK(ncclGroupEnd());
    for (int r = 0; r < kRanks; ++r) {
      int rank = -1;
      NCCL_OK(ncclCommUserRank(parts[r], &rank));
      EXPECT_EQ(r % 3, rank);
      NCCL_OK(ncclCommDestroy(parts[r]));
      NCCL_OK(ncclCommDestroy(comms[r]));
    }
    const int twice[2] = {1, 1};
    EXPECT_EQ(ncclInvalidUsage, ncclCommInitAll(comms, 2, twice));
    const int beyond[1] = {8};
    EXPECT_EQ(ncclInvalidArgument, ncclCommInitAll(comms, 1, beyond));
  });
}

TEST(Life, OfManyCommunicatorsAtOnce) {
  constexpr int kComms = 20;
  std::vector<ncclUniqueId> ids(kComms);
  for (ncclUniqueId& id : ids) NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(As::processes, 3, [&](int rank) {
    CUDA_OK(cudaSetDevice(rank));
    std::vector<ncclComm_t> comms(kComms);
    NCCL_OK(ncclGroupStart());
    for (int c = 0; c < kComms; ++c)
      NCCL_OK(ncclCommInitRank(&comms[static_cast<size_t>(c)], 3, ids[static_cast<size_t>(c)], rank));
    NCCL_OK(ncclGroupEnd());
    cudaStream_t stream = nullptr;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    DeviceBuffer<int> data(kComms);
    for (int c = 0; c < kComms; ++c) data[static_cast<size_t>(c)] = c;
    NCCL_OK(ncclGroupStart());
    for (int c = 0; c < kComms; ++c)
      NCCL_OK(ncclAllReduce(&data[static_cast<size_t>(c)], &data[static_cast<size_t>(c)], 1, ncclInt, ncclSum,
                            comms[static_cast<size_t>(c)], stream));
    NCCL_OK(ncclGroupEnd());
    CUDA_OK(cudaStreamSynchronize(stream));
    for (int c = 0; c < kComms; ++c) {
      EXPECT_EQ(3 * c, data[static_cast<size_t>(c)]);
      NCCL_OK(ncclCommDestroy(comms[static_cast<size_t>(c)]));
    }
  });
}

TEST(Life, EndsByFinalizeAndDestroy) {
  run_job(As::threads, 2, [](Rank& me) {
    DeviceBuffer<int> data(1);
    data[0] = 4;
    NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    NCCL_OK(ncclCommFinalize(me.comm));
    EXPECT_EQ(8, data[0]);  // it waits for what is in flight
    EXPECT_EQ(ncclInvalidArgument, ncclCommFinalize(me.comm));
    EXPECT_EQ(ncclInvalidArgument, ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, me.comm, me.stream));
    EXPECT_EQ(ncclSuccess, ncclCommDestroy(nullptr));
    EXPECT_EQ(ncclSuccess, ncclCommAbort(nullptr));
    ncclResult_t error = ncclInternalError;
    NCCL_OK(ncclCommGetAsyncError(me.comm, &error));
    EXPECT_EQ(ncclSuccess, error);
  });
}

TEST(Life, GoesOnInAChildForkedBeforeAndFailsClearlyInOneForkedAfter) {
  in_child([] {
    void* data = nullptr;
    CUDA_OK(cudaMalloc(&data, 64));
    std::vector<Child> child;
    child.emplace_back([&] {
      void* mine = nullptr;
      EXPECT_EQ(cudaErrorInitializationError, cudaMalloc(&mine, 64));
      EXPECT_EQ(cudaErrorInitializationError, cudaGetLastError());
      EXPECT_EQ(cudaErrorInitializationError, cudaStreamSynchronize(nullptr));
      EXPECT_EQ(cudaErrorInitializationError, cudaDeviceSynchronize());
      ncclUniqueId id;
      NCCL_OK(ncclGetUniqueId(&id));
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclUnhandledCudaError, ncclCommInitRank(&comm, 1, id, 0));
      EXPECT_NE(nullptr, std::strstr(ncclGetLastError(nullptr), "forked")) << ncclGetLastError(nullptr);
    });
    expect_all_end_well(child);
  });
}

// A child has none of its parent's threads, so it must not wait for what one of them held.
TEST(Life, ChildrenForkedBesideBusyThreadsDoNotHang) {
  in_child([] {
    std::atomic<bool> over{false};
    std::thread busy([&over] {
      while (!over.load()) {
        ncclComm_t comm = nullptr;
        NCCL_OK(ncclCommInitAll(&comm, 1, nullptr));
        NCCL_OK(ncclCommDestroy(comm));
      }
    });
    for (int i = 0; i < 40; ++i) {
      std::vector<Child> child;
      child.emplace_back([] {
        ncclUniqueId id;
        NCCL_OK(ncclGetUniqueId(&id));
      });
      expect_all_end_well(child, milliseconds(10000));
      if (::testing::Test::HasFailure()) break;
    }
    over.store(true);
    busy.join();
  });
}

// NCCL does not look at buffers, its kernels do: the call succeeds, then CUDA is out of order, and the peer waits.
TEST(Life, BuffersThatAreNoMemoryAreAnIllegalAddress) {
  for (const bool in_group : {false, true})
    for (const bool sends_it : {false, true}) {
      ncclUniqueId id;
      NCCL_OK(ncclGetUniqueId(&id));
      std::vector<Child> ranks;
      for (int rank = 0; rank < 2; ++rank)
        ranks.emplace_back([&, rank] {
          Rank me(rank, 2, id);
          DeviceBuffer<int> data(4);
          void* const nowhere = in_group ? reinterpret_cast<void*>(8) : nullptr;
          // What a call does not use may be anything.
          NCCL_OK(ncclReduce(data.data, rank == 0 ? data.data : nowhere, 4, ncclInt, ncclSum, 0, me.comm, me.stream));
          NCCL_OK(ncclAllReduce(nowhere, nowhere, 0, ncclInt, ncclSum, me.comm, me.stream));
          me.sync();
          const bool wrong = rank == 0;
          ::testing::internal::CaptureStderr();
          if (in_group) NCCL_OK(ncclGroupStart());
          NCCL_OK(ncclAllReduce(wrong && sends_it ? nowhere : data.data, wrong && !sends_it ? nowhere : data.data, 4,
                                ncclInt, ncclSum, me.comm, me.stream));
          if (in_group) NCCL_OK(ncclGroupEnd());
          const std::string said = ::testing::internal::GetCapturedStderr();
          if (wrong) {
            EXPECT_NE(std::string::npos, said.find(sends_it ? "ncclAllReduce: sendbuff" : "ncclAllReduce: recvbuff"))
                << said;
            EXPECT_EQ(cudaErrorIllegalAddress, cudaStreamSynchronize(me.stream));
            EXPECT_EQ(cudaErrorIllegalAddress, cudaGetLastError());
            EXPECT_EQ(cudaErrorIllegalAddress, cudaGetLastError());
            EXPECT_EQ(ncclUnhandledCudaError,
                      ncclAllReduce(data.data, data.data, 4, ncclInt, ncclSum, me.comm, me.stream));
            EXPECT_NE(std::string::npos, std::string(ncclGetLastError(me.comm)).find("an illegal memory access"));
            ncclComm_t another = nullptr;
            EXPECT_EQ(ncclUnhandledCudaError, ncclCommInitRank(&another, 1, id, 0));
          } else {
            EXPECT_EQ("", said);
            std::this_thread::sleep_for(milliseconds(20));
            EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(me.stream));
          }
          std::fflush(nullptr);
          _exit(::testing::Test::HasFailure() ? 1 : 0);  // the communicator cannot end well any more
        });
      expect_all_end_well(ranks);
    }
}

// exit() with every thread of the runtime still there, and work in flight.
TEST(Life, ExitsWithWorkInFlight) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      Rank me(rank, 2, id);
      DeviceBuffer<int> data(50000);
      CUDA_OK(cudaLaunchHostFunc(
          me.stream, [](void*) {}, nullptr));
      if (rank == 0) {
        NCCL_OK(ncclAllReduce(data.data, data.data, 50000, ncclInt, ncclSum, me.comm, me.stream));
        std::thread([&me] { cudaStreamSynchronize(me.stream); }).detach();
        std::this_thread::sleep_for(milliseconds(50));
      }
      exit(::testing::Test::HasFailure() ? 1 : 0);
    });
  expect_all_end_well(ranks, milliseconds(10000));
}

}  // namespace
}  // namespace lockstep::test
