// SPDX-License-Identifier: MIT
//
// A program built with CUDA_API_PER_THREAD_DEFAULT_STREAM: its null stream is the thread's own, and it says so by the
// names it calls (cudaMemsetAsync_ptsz and so on).

#define CUDA_API_PER_THREAD_DEFAULT_STREAM

#include <atomic>

#include "tests/reference/streams.h"

namespace lockstep::test {
namespace {

TEST(PerThread, NullIsTheThreadsOwnStream) {
  in_child([] {
    DeviceBuffer<int> data(2);
    data[0] = data[1] = 0;
    Latch latch;
    CUDA_OK(cudaLaunchHostFunc(nullptr, Latch::wait, &latch));
    CUDA_OK(cudaMemsetAsync(&data[0], 1, 4, nullptr));
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(nullptr));
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(cudaStreamPerThread));
    std::thread([&] {  // another thread has another one
      CUDA_OK(cudaMemset(&data[1], 1, 4));
      CUDA_OK(cudaStreamSynchronize(nullptr));
      EXPECT_EQ(cudaSuccess, cudaStreamQuery(nullptr));
      EXPECT_EQ(0x01010101, data[1]);
      EXPECT_EQ(0, data[0]);
      // The legacy stream is still there by its name, and waits for both.
      EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(cudaStreamLegacy));
    })
        .join();
    latch.open();
    CUDA_OK(cudaStreamSynchronize(nullptr));
    EXPECT_EQ(0x01010101, data[0]);
  });
}

TEST(PerThread, EventsAndCopiesFollow) {
  in_child([] {
    cudaEvent_t event = nullptr;
    CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    DeviceBuffer<int> data(1);
    data[0] = 0;
    Latch latch;
    CUDA_OK(cudaLaunchHostFunc(nullptr, Latch::wait, &latch));
    CUDA_OK(cudaEventRecord(event));
    EXPECT_EQ(cudaErrorNotReady, cudaEventQuery(event));
    std::thread opener([&] {
      brief_pause();
      data[0] = 5;
      latch.open();
    });
    int out = 0;
    CUDA_OK(cudaMemcpy(&out, data.data, sizeof out, cudaMemcpyDeviceToHost));  // behind the latch
    EXPECT_EQ(5, out);
    opener.join();
    CUDA_OK(cudaEventSynchronize(event));
  });
}

TEST(PerThread, StreamsMayBeCaptured) {
  in_child([] {
    std::atomic<int> called{0};
    CUDA_OK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(cudaLaunchHostFunc(
        nullptr, [](void* n) { static_cast<std::atomic<int>*>(n)->fetch_add(1); }, &called));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(nullptr, &graph));
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_OK(cudaGraphLaunch(exec, nullptr));
    CUDA_OK(cudaStreamSynchronize(nullptr));
    EXPECT_EQ(1, called.load());
  });
}

}  // namespace
}  // namespace lockstep::test
