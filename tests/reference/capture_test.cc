// SPDX-License-Identifier: MIT
//
// Stream capture: what becomes a node, what a capture forbids, and with which error.

#include <cstring>

#include "tests/reference/graphs.h"

namespace lockstep::test {
namespace {

cudaStreamCaptureStatus status_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  EXPECT_EQ(cudaSuccess, cudaStreamIsCapturing(stream, &status));
  return status;
}
// Ends a capture that must have failed so.
void expect_end(cudaError_t expected, cudaStream_t stream) {
  cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(1);
  EXPECT_EQ(expected, cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(nullptr, graph);
  EXPECT_EQ(cudaStreamCaptureStatusNone, status_of(stream));
}

TEST(Capture, MakesAGraphThatRunsAnyNumberOfTimes) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    DeviceBuffer<int> from(1000);
    DeviceBuffer<int> to(1000);
    std::memset(to.data, 0, 4000);
    std::atomic<int> called{0};
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(cudaStreamCaptureStatusActive, status_of(stream));
    CUDA_OK(cudaMemsetAsync(from.data, 1, 4000, stream));
    CUDA_OK(cudaMemcpyAsync(to.data, from.data, 4000, cudaMemcpyDeviceToDevice, stream));
    CUDA_OK(cudaLaunchHostFunc(stream, count_up, &called));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(cudaStreamCaptureStatusNone, status_of(stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(0, called.load());  // nothing ran
    EXPECT_EQ(0, to[0]);
    ASSERT_EQ(3u, nodes_in(graph));

    const cudaGraphExec_t exec = instantiate(graph);
    CUDA_OK(cudaGraphDestroy(graph));
    EXPECT_EQ(cudaErrorInvalidValue, cudaGraphDestroy(graph));
    for (int launch = 1; launch <= 20; ++launch) {
      CUDA_OK(cudaMemsetAsync(to.data, 0, 4000, stream));
      CUDA_OK(cudaGraphLaunch(exec, stream));
      if (launch % 5 != 0) continue;
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(launch, called.load());
      EXPECT_EQ(0x01010101, to[999]);
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    EXPECT_EQ(cudaErrorInvalidValue, cudaGraphLaunch(exec, stream));
  });
}

TEST(Capture, SpreadsByEventsAndMustComeTogetherAgain) {
  in_child([] {
    const cudaStream_t origin = new_stream();
    const cudaStream_t branch = new_stream();
    const cudaEvent_t forked = new_event(cudaEventDisableTiming);
    const cudaEvent_t joined = new_event(cudaEventDisableTiming);
    static std::vector<int> order;
    static std::mutex mutex;
    const auto note = [](void* n) {
      const std::lock_guard lock(mutex);
      order.push_back(static_cast<int>(reinterpret_cast<intptr_t>(n)));
    };
    const auto tag = [](int n) { return reinterpret_cast<void*>(static_cast<intptr_t>(n)); };
    CUDA_OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(cudaLaunchHostFunc(origin, note, tag(1)));
    CUDA_OK(cudaEventRecord(forked, origin));
    CUDA_OK(cudaStreamWaitEvent(branch, forked, 0));
    EXPECT_EQ(cudaStreamCaptureStatusActive, status_of(branch));
    CUDA_OK(cudaLaunchHostFunc(branch, note, tag(2)));
    CUDA_OK(cudaLaunchHostFunc(origin, note, tag(3)));
    CUDA_OK(cudaEventRecord(joined, branch));
    CUDA_OK(cudaStreamWaitEvent(origin, joined, 0));
    CUDA_OK(cudaLaunchHostFunc(origin, note, tag(4)));

    unsigned long long id = 0;
    unsigned long long id_of_branch = 0;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t while_captured = nullptr;
    const cudaGraphNode_t* tail = nullptr;
    size_t count = 0;
    CUDA_OK(cudaStreamGetCaptureInfo(origin, &status, &id, &while_captured, &tail, nullptr, &count));
    CUDA_OK(cudaStreamGetCaptureInfo(branch, &status, &id_of_branch));
    EXPECT_EQ(id, id_of_branch);
    ASSERT_EQ(1u, count);
    cudaGraphNodeType type = cudaGraphNodeTypeKernel;
    CUDA_OK(cudaGraphNodeGetType(tail[0], &type));
    EXPECT_EQ(cudaGraphNodeTypeHost, type);

    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(origin, &graph));
    EXPECT_EQ(while_captured, graph);
    EXPECT_EQ(cudaStreamCaptureStatusNone, status_of(branch));
    size_t edges = 0;
    CUDA_OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    EXPECT_EQ(4u, edges);
    const cudaGraphExec_t exec = instantiate(graph);
    for (int i = 0; i < 10; ++i) CUDA_OK(cudaGraphLaunch(exec, origin));
    CUDA_OK(cudaStreamSynchronize(origin));
    ASSERT_EQ(40u, order.size());
    for (size_t i = 0; i < 40; i += 4) {
      EXPECT_EQ(1, order[i]);
      EXPECT_EQ(5, order[i + 1] + order[i + 2]);
      EXPECT_EQ(4, order[i + 3]);
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));

    CUDA_OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(cudaEventRecord(forked, origin));
    CUDA_OK(cudaStreamWaitEvent(branch, forked, 0));
    CUDA_OK(cudaLaunchHostFunc(branch, note, tag(2)));
    EXPECT_EQ(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(branch, &graph));
    expect_end(cudaErrorStreamCaptureInvalidated, origin);
    CUDA_OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(cudaEventRecord(forked, origin));
    CUDA_OK(cudaStreamWaitEvent(branch, forked, 0));
    CUDA_OK(cudaLaunchHostFunc(branch, note, tag(2)));
    expect_end(cudaErrorStreamCaptureUnjoined, origin);
    CUDA_OK(cudaStreamSynchronize(branch));  // free again
  });
}

// Each branch of a graph is on its own: one that blocks does not hold up the other.
TEST(Capture, KeepsBranchesApart) {
  in_child([] {
    const cudaStream_t origin = new_stream();
    const cudaStream_t branch = new_stream();
    const cudaEvent_t event = new_event(cudaEventDisableTiming);
    Latch latch;
    std::atomic<int> other{0};
    CUDA_OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
    CUDA_OK(cudaEventRecord(event, origin));
    CUDA_OK(cudaStreamWaitEvent(branch, event, 0));
    CUDA_OK(cudaLaunchHostFunc(origin, Latch::wait, &latch));
    CUDA_OK(cudaLaunchHostFunc(branch, count_up, &other));
    CUDA_OK(cudaEventRecord(event, branch));
    CUDA_OK(cudaStreamWaitEvent(origin, event, 0));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(origin, &graph));
    const cudaGraphExec_t exec = instantiate(graph);
    CUDA_OK(cudaGraphLaunch(exec, origin));
    wait_until([&] { return other.load() == 1; });
    EXPECT_EQ(1, other.load());
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(origin));
    latch.open();
    CUDA_OK(cudaStreamSynchronize(origin));
    CUDA_OK(cudaGraphExecDestroy(exec));
  });
}

TEST(Capture, ForbidsWhatCouldNotBeToldApart) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    const cudaStream_t other = new_stream();
    const cudaEvent_t event = new_event();
    const cudaEvent_t before = new_event();
    CUDA_OK(cudaEventRecord(before, other));
    CUDA_OK(cudaEventSynchronize(before));
    void* memory = nullptr;
    const auto begin = [&](cudaStreamCaptureMode mode) { CUDA_OK(cudaStreamBeginCapture(stream, mode)); };
    const auto end = [&] {
      cudaGraph_t graph = nullptr;
      CUDA_OK(cudaStreamEndCapture(stream, &graph));
      CUDA_OK(cudaGraphDestroy(graph));
    };
    using Call = std::function<cudaError_t()>;
    const std::pair<cudaError_t, Call> unsafe[] = {
        {cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&memory, 8); }},
        {cudaErrorStreamCaptureUnsupported, [&] { return cudaMallocHost(&memory, 8); }},
        {cudaErrorStreamCaptureUnsupported, [&] { return cudaEventQuery(before); }},
        {cudaErrorStreamCaptureUnsupported, [&] { return cudaEventSynchronize(before); }},
        {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(other); }},
    };
    for (const auto& [error, call] : unsafe) {
      begin(cudaStreamCaptureModeGlobal);
      EXPECT_EQ(error, call());
      EXPECT_EQ(error, cudaGetLastError());
      EXPECT_EQ(cudaStreamCaptureStatusInvalidated, status_of(stream));
      EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(&memory, 0, 8, stream));
      expect_end(cudaErrorStreamCaptureInvalidated, stream);
      begin(cudaStreamCaptureModeRelaxed);
      EXPECT_EQ(cudaSuccess, call());
      end();
    }
    const std::pair<cudaError_t, Call> always[] = {
        {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream); }},
        {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(stream); }},
        {cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); }},
        {cudaErrorStreamCaptureUnsupported,
         [&] {
           return cudaStreamAddCallback(
               stream, [](cudaStream_t, cudaError_t, void*) {}, nullptr, 0);
         }},
        {cudaErrorCapturedEvent, [&] { return cudaEventQuery(event); }},
        {cudaErrorCapturedEvent, [&] { return cudaEventSynchronize(event); }},
        {cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(stream, before, 0); }},
        {cudaErrorStreamCaptureImplicit, [&] { return cudaStreamWaitEvent(cudaStreamLegacy, event, 0); }},
    };
    for (const auto& [error, call] : always) {
      begin(cudaStreamCaptureModeRelaxed);
      CUDA_OK(cudaEventRecord(event, stream));
      EXPECT_EQ(error, call());
      expect_end(cudaErrorStreamCaptureInvalidated, stream);
    }
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaErrorIllegalState, cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(cudaErrorInvalidValue, cudaStreamBeginCapture(stream, static_cast<cudaStreamCaptureMode>(3)));
    begin(cudaStreamCaptureModeGlobal);
    EXPECT_EQ(cudaErrorIllegalState, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    end();
  });
}

TEST(Capture, ForbidsOtherThreadsByTheirMode) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    const auto malloc_elsewhere = [](cudaStreamCaptureMode mode) {
      cudaError_t result = cudaSuccess;
      std::thread([&] {
        void* memory = nullptr;
        CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
        EXPECT_EQ(cudaStreamCaptureModeGlobal, mode);  // what a thread starts with
        result = cudaMalloc(&memory, 8);
      }).join();
      return result;
    };
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(cudaSuccess, malloc_elsewhere(cudaStreamCaptureModeThreadLocal));
    EXPECT_EQ(cudaSuccess, malloc_elsewhere(cudaStreamCaptureModeRelaxed));
    EXPECT_EQ(cudaStreamCaptureStatusActive, status_of(stream));
    EXPECT_EQ(cudaErrorStreamCaptureUnsupported, malloc_elsewhere(cudaStreamCaptureModeGlobal));
    expect_end(cudaErrorStreamCaptureInvalidated, stream);
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_EQ(cudaSuccess, malloc_elsewhere(cudaStreamCaptureModeGlobal));
    std::thread([&] { EXPECT_EQ(cudaErrorStreamCaptureWrongThread, cudaStreamEndCapture(stream, &graph)); }).join();
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphDestroy(graph));
    cudaStreamCaptureMode wrong = static_cast<cudaStreamCaptureMode>(7);
    EXPECT_EQ(cudaErrorInvalidValue, cudaThreadExchangeStreamCaptureMode(&wrong));
  });
}

TEST(Capture, OfABlockingStreamKeepsTheLegacyStreamOut) {
  in_child([] {
    const cudaStream_t stream = new_stream(cudaStreamDefault);
    DeviceBuffer<int> data(1);
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_EQ(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(nullptr, &status));
    EXPECT_EQ(cudaStreamCaptureStatusActive, status_of(stream));  // asking does no harm
    EXPECT_EQ(cudaErrorStreamCaptureImplicit, cudaMemsetAsync(data.data, 0, 4, nullptr));
    expect_end(cudaErrorStreamCaptureInvalidated, stream);
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    int out = 0;
    EXPECT_EQ(cudaErrorStreamCaptureImplicit, cudaMemcpy(&out, data.data, 4, cudaMemcpyDefault));
    expect_end(cudaErrorStreamCaptureInvalidated, stream);
    const cudaStream_t apart = new_stream();
    CUDA_OK(cudaStreamBeginCapture(apart, cudaStreamCaptureModeRelaxed));
    CUDA_OK(cudaMemsetAsync(data.data, 0, 4, nullptr));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(apart, &graph));
    CUDA_OK(cudaGraphDestroy(graph));
  });
}

TEST(Capture, DoesNotMix) {
  in_child([] {
    const cudaStream_t first = new_stream();
    const cudaStream_t second = new_stream();
    const cudaEvent_t event = new_event();
    CUDA_OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed));
    CUDA_OK(cudaStreamBeginCapture(second, cudaStreamCaptureModeRelaxed));
    CUDA_OK(cudaEventRecord(event, first));
    EXPECT_EQ(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(second, event, 0));
    expect_end(cudaErrorStreamCaptureInvalidated, first);
    expect_end(cudaErrorStreamCaptureInvalidated, second);
    CUDA_OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed));
    CUDA_OK(cudaStreamDestroy(first));  // takes its capture with it
    void* memory = nullptr;
    CUDA_OK(cudaMalloc(&memory, 8));
  });
}

TEST(Capture, TakesEventNodesWhenAskedTo) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    const cudaStream_t other = new_stream();
    const cudaEvent_t go = new_event();
    const cudaEvent_t done = new_event();
    Latch latch;
    std::atomic<int> called{0};
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA_OK(cudaStreamWaitEvent(stream, go, cudaEventWaitExternal));
    CUDA_OK(cudaLaunchHostFunc(stream, count_up, &called));
    CUDA_OK(cudaEventRecordWithFlags(done, stream, cudaEventRecordExternal));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    const cudaGraphExec_t exec = instantiate(graph);
    CUDA_OK(cudaLaunchHostFunc(other, Latch::wait, &latch));
    CUDA_OK(cudaEventRecord(go, other));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    EXPECT_EQ(cudaErrorNotReady, cudaEventQuery(done));
    brief_pause();
    EXPECT_EQ(0, called.load());
    latch.open();
    CUDA_OK(cudaEventSynchronize(done));
    EXPECT_EQ(1, called.load());
  });
}

TEST(Capture, OwnsMemoryAllocatedInIt) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    size_t before = 0;
    size_t during = 0;
    size_t after = 0;
    size_t total = 0;
    DeviceBuffer<int> out(1);
    CUDA_OK(cudaMemGetInfo(&before, &total));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    int* scratch = nullptr;
    CUDA_OK(cudaMallocAsync(&scratch, 1 << 20, stream));
    CUDA_OK(cudaMemsetAsync(scratch, 3, 4, stream));
    CUDA_OK(cudaMemcpyAsync(out.data, scratch, 4, cudaMemcpyDefault, stream));
    CUDA_OK(cudaFreeAsync(scratch, stream));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    EXPECT_EQ(4u, nodes_in(graph));
    const cudaGraphExec_t exec = instantiate(graph);
    CUDA_OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 3; ++i) CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(0x03030303, out[0]);
    CUDA_OK(cudaMemGetInfo(&during, &total));
    EXPECT_EQ(before - (1 << 20), during);
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaMemGetInfo(&after, &total));
    EXPECT_EQ(before, after);
  });
}

TEST(Capture, GoesIntoAGraphThatIsThere) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    std::atomic<int> called{0};
    cudaGraph_t graph = nullptr;
    cudaGraphNode_t first = nullptr;
    const cudaHostNodeParams params{count_up, &called};
    CUDA_OK(cudaGraphCreate(&graph, 0));
    CUDA_OK(cudaGraphAddHostNode(&first, graph, nullptr, 0, &params));
    CUDA_OK(cudaStreamBeginCaptureToGraph(stream, graph, &first, nullptr, 1, cudaStreamCaptureModeGlobal));
    CUDA_OK(cudaLaunchHostFunc(stream, count_up, &called));
    cudaGraphNode_t extra = nullptr;
    CUDA_OK(cudaGraphAddEmptyNode(&extra, graph, nullptr, 0));
    CUDA_OK(cudaStreamUpdateCaptureDependencies(stream, &extra, nullptr, 1, cudaStreamAddCaptureDependencies));
    CUDA_OK(cudaLaunchHostFunc(stream, count_up, &called));
    cudaGraph_t same = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &same));
    EXPECT_EQ(graph, same);
    EXPECT_EQ(4u, nodes_in(graph));
    size_t edges = 0;
    CUDA_OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    EXPECT_EQ(3u, edges);
    CUDA_OK(cudaGraphLaunch(instantiate(graph), stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(3, called.load());
  });
}

}  // namespace
}  // namespace lockstep::test
