// SPDX-License-Identifier: MIT
//
// The CUDA runtime's order: streams, events, copies, host functions, and the default stream's implicit waits. Each case
// runs in a child of its own, see ranks.h.

#include "tests/reference/streams.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace lockstep::test {
namespace {

TEST(Streams, RunTheirWorkInOrderAndApartFromEachOther) {
  in_child([] {
    const cudaStream_t held = new_stream();
    const cudaStream_t free_one = new_stream();
    Latch latch;
    DeviceBuffer<char> data(1 << 20);
    CUDA_OK(cudaMemset(data.data, 0, data.count));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaLaunchHostFunc(held, Latch::wait, &latch));
    CUDA_OK(cudaMemsetAsync(data.data, 1, data.count, held));
    CUDA_OK(cudaMemsetAsync(data.data, 2, data.count / 2, held));
    CUDA_OK(cudaStreamSynchronize(free_one));
    brief_pause();
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(held));
    EXPECT_EQ(cudaErrorNotReady, cudaGetLastError());
    EXPECT_EQ(0, data[0]);
    latch.open();
    CUDA_OK(cudaStreamSynchronize(held));
    EXPECT_EQ(cudaSuccess, cudaStreamQuery(held));
    EXPECT_EQ(2, data[0]);
    EXPECT_EQ(1, data[data.count - 1]);
    CUDA_OK(cudaStreamDestroy(held));
    CUDA_OK(cudaStreamDestroy(free_one));
    EXPECT_EQ(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(held));
  });
}

TEST(Streams, MakeProgressWithoutAnybodyWaiting) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    std::atomic<int> count{0};
    for (int i = 0; i < 3; ++i)
      CUDA_OK(cudaLaunchHostFunc(
          stream, [](void* n) { static_cast<std::atomic<int>*>(n)->fetch_add(1); }, &count));
    const auto deadline = Clock::now() + milliseconds(5000);
    while (count.load() < 3 && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(3, count.load());
    std::this_thread::sleep_for(milliseconds(50));  // long enough for the progress thread to fall asleep
    CUDA_OK(cudaLaunchHostFunc(
        stream, [](void* n) { static_cast<std::atomic<int>*>(n)->fetch_add(1); }, &count));
    while (count.load() < 4 && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(4, count.load());
  });
}

TEST(Streams, DestroyedWithWorkFinishIt) {
  in_child([] {
    const cudaStream_t stream = new_stream(cudaStreamDefault);
    Latch latch;
    std::atomic<bool> ran{false};
    CUDA_OK(cudaLaunchHostFunc(stream, Latch::wait, &latch));
    CUDA_OK(cudaLaunchHostFunc(
        stream, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &ran));
    CUDA_OK(cudaStreamDestroy(stream));
    EXPECT_EQ(cudaErrorInvalidResourceHandle, cudaStreamQuery(stream));
    latch.open();
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_TRUE(ran.load());
  });
}

TEST(Streams, LegacyStreamWaitsForBlockingOnesAndTheyForIt) {
  in_child([] {
    const cudaStream_t blocking = new_stream(cudaStreamDefault);
    const cudaStream_t non_blocking = new_stream(cudaStreamNonBlocking);
    Latch first;
    Latch second;
    DeviceBuffer<int> data(3);
    std::memset(data.data, 0, 3 * sizeof(int));
    CUDA_OK(cudaLaunchHostFunc(blocking, Latch::wait, &first));
    CUDA_OK(cudaMemsetAsync(&data[0], 1, sizeof(int), nullptr));
    CUDA_OK(cudaMemsetAsync(&data[1], 1, sizeof(int), non_blocking));
    CUDA_OK(cudaStreamSynchronize(non_blocking));
    brief_pause();
    EXPECT_EQ(0, data[0]);  // behind the blocking stream
    EXPECT_NE(0, data[1]);
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(cudaStreamLegacy));
    first.open();
    CUDA_OK(cudaStreamSynchronize(nullptr));
    EXPECT_NE(0, data[0]);

    CUDA_OK(cudaLaunchHostFunc(cudaStreamLegacy, Latch::wait, &second));
    CUDA_OK(cudaMemsetAsync(&data[2], 1, sizeof(int), blocking));
    brief_pause();
    EXPECT_EQ(0, data[2]);
    second.open();
    CUDA_OK(cudaStreamSynchronize(blocking));
    EXPECT_NE(0, data[2]);
  });
}

TEST(Streams, SynchronousCopyWaitsForBlockingStreams) {
  in_child([] {
    const cudaStream_t blocking = new_stream(cudaStreamDefault);
    DeviceBuffer<int> data(1);
    data[0] = 0;
    CUDA_OK(cudaLaunchHostFunc(
        blocking,
        [](void* at) {
          std::this_thread::sleep_for(milliseconds(50));
          *static_cast<int*>(at) = 42;
        },
        data.data));
    int out = -1;
    CUDA_OK(cudaMemcpy(&out, data.data, sizeof out, cudaMemcpyDeviceToHost));
    EXPECT_EQ(42, out);
  });
}

TEST(Streams, PerThreadDefaultStreamsAreTheThreadsOwn) {
  in_child([] {
    Latch latch;
    CUDA_OK(cudaLaunchHostFunc(cudaStreamPerThread, Latch::wait, &latch));
    std::thread([] { CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread)); }).join();
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(cudaStreamPerThread));
    latch.open();
    CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
  });
}

TEST(Streams, OfOtherDevicesAreNotWaitedFor) {
  in_child([] {
    const cudaStream_t held = new_stream(cudaStreamDefault);
    Latch latch;
    CUDA_OK(cudaLaunchHostFunc(held, Latch::wait, &latch));
    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaStreamSynchronize(nullptr));
    CUDA_OK(cudaSetDevice(0));
    latch.open();
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(cudaErrorInvalidDevice, cudaSetDevice(8));
    EXPECT_EQ(cudaErrorInvalidDevice, cudaGetLastError());
    EXPECT_EQ(cudaSuccess, cudaGetLastError());
  });
}

TEST(Events, AreOverWhenTheirStreamGotThere) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    const cudaEvent_t event = new_event();
    EXPECT_EQ(cudaSuccess, cudaEventQuery(event));  // never recorded
    CUDA_OK(cudaEventSynchronize(event));
    Latch latch;
    CUDA_OK(cudaEventRecord(event, stream));
    CUDA_OK(cudaLaunchHostFunc(stream, Latch::wait, &latch));
    CUDA_OK(cudaEventSynchronize(event));  // before the latch
    CUDA_OK(cudaEventRecord(event, stream));
    EXPECT_EQ(cudaErrorNotReady, cudaEventQuery(event));
    latch.open();
    CUDA_OK(cudaEventSynchronize(event));
    EXPECT_EQ(cudaSuccess, cudaEventQuery(event));
    CUDA_OK(cudaEventDestroy(event));
    EXPECT_EQ(cudaErrorInvalidResourceHandle, cudaEventQuery(event));
  });
}

TEST(Events, OrderStreams) {
  in_child([] {
    const cudaStream_t first = new_stream();
    const cudaStream_t second = new_stream();
    const cudaEvent_t event = new_event(cudaEventDisableTiming);
    Latch latch;
    DeviceBuffer<int> data(1);
    data[0] = 0;
    CUDA_OK(cudaLaunchHostFunc(first, Latch::wait, &latch));
    CUDA_OK(cudaMemsetAsync(data.data, 1, sizeof(int), first));
    CUDA_OK(cudaEventRecord(event, first));
    CUDA_OK(cudaStreamWaitEvent(second, event, 0));
    // A wait is for the record made before it: a later one does not move it.
    CUDA_OK(cudaEventRecord(event, second));
    std::atomic<int> seen{-1};
    struct Look {
      int* at;
      std::atomic<int>* seen;
    } look{data.data, &seen};
    CUDA_OK(cudaLaunchHostFunc(
        second, [](void* l) { static_cast<Look*>(l)->seen->store(*static_cast<Look*>(l)->at); }, &look));
    brief_pause();
    EXPECT_EQ(-1, seen.load());
    latch.open();
    CUDA_OK(cudaStreamSynchronize(second));
    EXPECT_EQ(0x01010101, seen.load());
  });
}

TEST(Events, MeasureTime) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    const cudaEvent_t start = new_event();
    const cudaEvent_t end = new_event();
    float ms = -1;
    EXPECT_EQ(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, start, end));
    CUDA_OK(cudaEventRecord(start, stream));
    CUDA_OK(cudaLaunchHostFunc(
        stream, [](void*) { std::this_thread::sleep_for(milliseconds(40)); }, nullptr));
    CUDA_OK(cudaEventRecord(end, stream));
    EXPECT_EQ(cudaErrorNotReady, cudaEventElapsedTime(&ms, start, end));
    CUDA_OK(cudaEventSynchronize(end));
    CUDA_OK(cudaEventElapsedTime(&ms, start, end));
    EXPECT_GE(ms, 39.0f);
    EXPECT_LT(ms, 10000.0f);
    const cudaEvent_t untimed = new_event(cudaEventDisableTiming);
    CUDA_OK(cudaEventRecord(untimed, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, start, untimed));
  });
}

TEST(HostFunctions, RunInOrderOnAThreadOfTheirOwn) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    static std::vector<int> order;
    static std::vector<std::thread::id> threads;
    for (int i = 0; i < 100; ++i)
      CUDA_OK(cudaLaunchHostFunc(
          stream,
          [](void* n) {
            order.push_back(static_cast<int>(reinterpret_cast<intptr_t>(n)));
            threads.push_back(std::this_thread::get_id());
          },
          reinterpret_cast<void*>(static_cast<intptr_t>(i))));
    CUDA_OK(cudaStreamSynchronize(stream));
    ASSERT_EQ(100u, order.size());
    for (int i = 0; i < 100; ++i) EXPECT_EQ(i, order[static_cast<size_t>(i)]);
    for (const auto& id : threads) {
      EXPECT_NE(std::this_thread::get_id(), id);
      EXPECT_EQ(threads.front(), id);
    }
  });
}

TEST(HostFunctions, ThatBlockHoldUpTheirStreamOnly) {
  in_child([] {
    std::vector<cudaStream_t> held;
    Latch latch;
    for (int i = 0; i < 20; ++i) {
      held.push_back(new_stream());
      CUDA_OK(cudaLaunchHostFunc(held.back(), Latch::wait, &latch));
    }
    const cudaStream_t stream = new_stream();
    std::atomic<bool> ran{false};
    CUDA_OK(cudaLaunchHostFunc(
        stream, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &ran));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(ran.load());
    for (const cudaStream_t s : held) EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(s));
    latch.open();
    CUDA_OK(cudaDeviceSynchronize());
  });
}

TEST(HostFunctions, AsCallbacksGetStreamAndStatus) {
  in_child([] {
    static cudaStream_t seen = nullptr;
    static cudaError_t status = cudaErrorUnknown;
    const cudaStream_t stream = new_stream();
    CUDA_OK(cudaStreamAddCallback(
        stream,
        [](cudaStream_t s, cudaError_t e, void*) {
          seen = s;
          status = e;
        },
        nullptr, 0));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(stream, seen);
    EXPECT_EQ(cudaSuccess, status);
  });
}

TEST(Copies, ToPageableMemoryHoldTheHostUp) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    DeviceBuffer<int> data(1);
    data[0] = 0;
    CUDA_OK(cudaLaunchHostFunc(
        stream,
        [](void* at) {
          std::this_thread::sleep_for(milliseconds(40));
          *static_cast<int*>(at) = 7;
        },
        data.data));
    int out = 0;
    CUDA_OK(cudaMemcpyAsync(&out, data.data, sizeof out, cudaMemcpyDeviceToHost, stream));
    EXPECT_EQ(7, out);  // without any synchronisation
  });
}

TEST(Copies, FromPageableMemoryTakeTheSourceAtOnce) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    DeviceBuffer<int> data(1000);
    Latch latch;
    std::vector<int> source(1000, 5);
    CUDA_OK(cudaLaunchHostFunc(stream, Latch::wait, &latch));
    CUDA_OK(cudaMemcpyAsync(data.data, source.data(), 4000, cudaMemcpyHostToDevice, stream));
    std::fill(source.begin(), source.end(), 6);
    latch.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(5, data[0]);
    EXPECT_EQ(5, data[999]);
  });
}

TEST(Copies, BetweenPinnedAndDeviceMemoryAreAsynchronous) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    const size_t count = 3 << 20;
    DeviceBuffer<char> data(count);
    char* pinned = nullptr;
    CUDA_OK(cudaMallocHost(&pinned, count));
    Latch latch;
    for (size_t i = 0; i < count; ++i) data[i] = static_cast<char>(i * 7);
    CUDA_OK(cudaLaunchHostFunc(stream, Latch::wait, &latch));
    CUDA_OK(cudaMemcpyAsync(pinned, data.data, count, cudaMemcpyDefault, stream));
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(0, std::memcmp(pinned, data.data, count));
    CUDA_OK(cudaFreeHost(pinned));
  });
}

TEST(Memory, IsGivenBackToTheSystem) {
  in_child([] {
    const auto pages = [] {  // of the heap's file
      long blocks = 0;
      for (int fd = 0; fd < 64; ++fd) {
        char link[64];
        char name[128] = "";
        std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        struct stat what {};
        if (readlink(link, name, sizeof name - 1) > 0 && std::strstr(name, "lockstep-host-heap") != nullptr &&
            fstat(fd, &what) == 0)
          blocks += what.st_blocks;
      }
      return blocks * 512 / 4096;
    };
    void* first = nullptr;
    CUDA_OK(cudaMalloc(&first, 8));
    const long before = pages();
    for (int i = 0; i < 8; ++i) {
      DeviceBuffer<char> data(32 << 20);
      std::memset(data.data, 1, data.count);
    }
    EXPECT_LT(pages() - before, (2 << 20) / 4096);
    // Small blocks too, once enough of them are free.
    std::vector<void*> blocks(4000);
    for (void*& block : blocks) {
      CUDA_OK(cudaMalloc(&block, 16 << 10));
      std::memset(block, 1, 16 << 10);
    }
    EXPECT_GE(pages() - before, 4000 * 4);
    for (void* block : blocks) CUDA_OK(cudaFree(block));
    EXPECT_LT(pages() - before, (2 << 20) / 4096);
  });
}

TEST(Memory, KnowsItsBlocks) {
  in_child([] {
    void* none = reinterpret_cast<void*>(1);
    CUDA_OK(cudaMalloc(&none, 0));
    EXPECT_EQ(nullptr, none);
    void* huge = nullptr;
    EXPECT_EQ(cudaErrorMemoryAllocation, cudaMalloc(&huge, size_t{1} << 45));
    EXPECT_EQ(cudaErrorMemoryAllocation, cudaGetLastError());
    DeviceBuffer<char> data(1000);
    EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(data.data) % 256);
    EXPECT_EQ(cudaErrorInvalidValue, cudaFree(data.data + 256));
    int local = 0;
    EXPECT_EQ(cudaErrorInvalidValue, cudaFree(&local));
    CUDA_OK(cudaFree(nullptr));
    cudaPointerAttributes what{};
    CUDA_OK(cudaPointerGetAttributes(&what, data.data + 10));
    EXPECT_EQ(cudaMemoryTypeDevice, what.type);
    CUDA_OK(cudaPointerGetAttributes(&what, &local));
    EXPECT_EQ(cudaMemoryTypeUnregistered, what.type);
    size_t available = 0;
    size_t total = 0;
    CUDA_OK(cudaMemGetInfo(&available, &total));
    EXPECT_GT(total, available);
    cudaDeviceProp prop{};
    CUDA_OK(cudaGetDeviceProperties(&prop, 3));
    EXPECT_STREQ("Lockstep host device", prop.name);
    EXPECT_EQ(total, prop.totalGlobalMem);
  });
}

TEST(Memory, AllocatedAndFreedInStreamOrder) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    int* data = nullptr;
    CUDA_OK(cudaMallocAsync(&data, 4096, stream));
    Latch latch;
    CUDA_OK(cudaLaunchHostFunc(stream, Latch::wait, &latch));
    CUDA_OK(cudaMemsetAsync(data, 3, 4096, stream));
    CUDA_OK(cudaFreeAsync(data, stream));
    latch.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(cudaErrorInvalidValue, cudaFree(data));
  });
}

TEST(Errors, OfAKernelLaunchStay) {
  in_child([] {
    using Launch = cudaError_t (*)(const void*, dim3, dim3, void**, size_t, cudaStream_t);
    const auto launch = reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "cudaLaunchKernel"));
    ASSERT_NE(nullptr, launch);
    static const char kernel = 0;
    EXPECT_EQ(cudaErrorNotSupported, launch(&kernel, dim3(1), dim3(1), nullptr, 0, nullptr));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(cudaErrorNotSupported, cudaGetLastError());
    EXPECT_EQ(cudaErrorNotSupported, cudaPeekAtLastError());
    EXPECT_EQ(cudaErrorNotSupported, cudaDeviceSynchronize());
    void* data = nullptr;
    EXPECT_EQ(cudaErrorNotSupported, cudaMalloc(&data, 8));
  });
}

TEST(Devices, AreAsManyAsAskedFor) {
  in_child([] {
    setenv("LOCKSTEP_HOST_DEVICES", "100", 1);
    int count = 0;
    CUDA_OK(cudaGetDeviceCount(&count));
    EXPECT_EQ(100, count);
    CUDA_OK(cudaSetDevice(99));
    int device = 0;
    CUDA_OK(cudaGetDevice(&device));
    EXPECT_EQ(99, device);
  });
  in_child([] {
    setenv("LOCKSTEP_HOST_DEVICES", "many", 1);
    int count = 0;
    CUDA_OK(cudaGetDeviceCount(&count));
    EXPECT_EQ(8, count);
  });
}

}  // namespace
}  // namespace lockstep::test
