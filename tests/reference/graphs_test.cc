// SPDX-License-Identifier: MIT
//
// Graphs: made by hand or captured, in which order their nodes run, how they are launched, and with NCCL in them.

#include "tests/reference/graphs.h"

#include <cstring>
#include <fstream>
#include <string>

namespace lockstep::test {
namespace {

TEST(Graphs, AreBuiltByHand) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    DeviceBuffer<unsigned short> data(64);
    DeviceBuffer<unsigned short> copy(64);
    std::memset(data.data, 0, 128);
    std::memset(copy.data, 0, 128);
    std::atomic<int> called{0};
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    EXPECT_EQ(cudaErrorInvalidValue, cudaGraphCreate(nullptr, 0));
    // Four elements of two bytes in each of three rows of sixteen bytes.
    const cudaMemsetParams fill{data.data, 16, 0x1234, 2, 4, 3};
    cudaGraphNode_t filled = nullptr;
    CUDA_OK(cudaGraphAddMemsetNode(&filled, graph, nullptr, 0, &fill));
    cudaMemcpy3DParms params{};
    params.srcPtr = {data.data, 16, 16, 8};
    params.dstPtr = {copy.data, 32, 32, 4};
    params.extent = {8, 3, 1};
    params.kind = cudaMemcpyDefault;
    cudaGraphNode_t copied = nullptr;
    CUDA_OK(cudaGraphAddMemcpyNode(&copied, graph, &filled, 1, &params));
    cudaGraphNode_t told = nullptr;
    const cudaHostNodeParams host{count_up, &called};
    CUDA_OK(cudaGraphAddHostNode(&told, graph, nullptr, 0, &host));
    CUDA_OK(cudaGraphAddDependencies(graph, &copied, &told, nullptr, 1));
    EXPECT_EQ(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, &copied, &told, nullptr, 1));

    cudaGraphNode_t found[4];
    size_t count = 4;
    CUDA_OK(cudaGraphGetRootNodes(graph, found, &count));
    ASSERT_EQ(1u, count);
    EXPECT_EQ(filled, found[0]);
    EXPECT_EQ(nullptr, found[1]);
    count = 4;
    CUDA_OK(cudaGraphNodeGetDependencies(told, found, nullptr, &count));
    ASSERT_EQ(1u, count);
    EXPECT_EQ(copied, found[0]);
    count = 4;
    CUDA_OK(cudaGraphNodeGetDependentNodes(filled, found, nullptr, &count));
    ASSERT_EQ(1u, count);
    EXPECT_EQ(copied, found[0]);
    cudaMemsetParams read{};
    CUDA_OK(cudaGraphMemsetNodeGetParams(filled, &read));
    EXPECT_EQ(0x1234u, read.value);
    EXPECT_EQ(cudaErrorInvalidValue, cudaGraphMemsetNodeGetParams(told, &read));

    const cudaGraphExec_t exec = instantiate(graph);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(1, called.load());
    for (size_t row = 0; row < 3; ++row)
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(i % 8 < 4 ? 0x1234 : 0, data[row * 8 + i % 8]) << row << ' ' << i;
        EXPECT_EQ(i < 4 ? 0x1234 : 0, copy[row * 16 + i]) << row << ' ' << i;
      }
    // Other parameters in what was made already, one node switched off, and the graph itself as it was.
    cudaMemsetParams other = fill;
    other.value = 0x4321;
    CUDA_OK(cudaGraphExecMemsetNodeSetParams(exec, filled, &other));
    EXPECT_EQ(cudaErrorInvalidValue, cudaGraphExecMemsetNodeSetParams(exec, told, &other));
    CUDA_OK(cudaGraphNodeSetEnabled(exec, told, 0));
    unsigned enabled = 1;
    CUDA_OK(cudaGraphNodeGetEnabled(exec, told, &enabled));
    EXPECT_EQ(0u, enabled);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(1, called.load());
    EXPECT_EQ(0x4321, copy[0]);
    cudaGraphExecUpdateResultInfo info{};
    CUDA_OK(cudaGraphExecUpdate(exec, graph, &info));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(0x1234, copy[0]);
    CUDA_OK(cudaGraphDestroyNode(told));
    EXPECT_EQ(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, graph, &info));
    EXPECT_EQ(cudaGraphExecUpdateErrorTopologyChanged, info.result);

    CUDA_OK(cudaGraphAddDependencies(graph, &copied, &filled, nullptr, 1));  // a circle
    cudaGraphExec_t none = nullptr;
    EXPECT_EQ(cudaErrorInvalidValue, cudaGraphInstantiate(&none, graph, 0));
    CUDA_OK(cudaGraphRemoveDependencies(graph, &copied, &filled, nullptr, 1));
    CUDA_OK(cudaGraphInstantiate(&none, graph, 0));
  });
}

TEST(Graphs, ContainEachOther) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    std::atomic<int> called{0};
    const cudaHostNodeParams host{count_up, &called};
    cudaGraph_t inner = nullptr;
    cudaGraph_t outer = nullptr;
    cudaGraphNode_t node = nullptr;
    CUDA_OK(cudaGraphCreate(&inner, 0));
    CUDA_OK(cudaGraphAddHostNode(&node, inner, nullptr, 0, &host));
    CUDA_OK(cudaGraphAddHostNode(&node, inner, &node, 1, &host));
    CUDA_OK(cudaGraphCreate(&outer, 0));
    cudaGraphNode_t child = nullptr;
    CUDA_OK(cudaGraphAddChildGraphNode(&child, outer, nullptr, 0, inner));
    cudaGraph_t inside = nullptr;
    CUDA_OK(cudaGraphChildGraphNodeGetGraph(child, &inside));
    EXPECT_NE(inner, inside);
    EXPECT_EQ(2u, nodes_in(inside));
    CUDA_OK(cudaGraphDestroy(inner));
    Latch latch;
    const cudaHostNodeParams hold{Latch::wait, &latch};
    cudaGraphNode_t last = nullptr;
    CUDA_OK(cudaGraphAddHostNode(&last, outer, &child, 1, &hold));
    cudaGraph_t copy = nullptr;
    CUDA_OK(cudaGraphClone(&copy, outer));
    cudaGraphNode_t twin = nullptr;
    CUDA_OK(cudaGraphNodeFindInClone(&twin, last, copy));
    CUDA_OK(cudaGraphHostNodeSetParams(twin, &host));
    const cudaGraphExec_t exec = instantiate(copy);
    // Launched into a captured stream, a graph is a node.
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    cudaGraph_t captured = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &captured));
    EXPECT_EQ(2u, nodes_in(captured));
    EXPECT_EQ(0, called.load());
    CUDA_OK(cudaGraphLaunch(instantiate(captured), stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(6, called.load());
    CUDA_OK(cudaGraphLaunch(instantiate(outer), stream));
    wait_until([&] { return called.load() == 8; });
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(8, called.load());
  });
}

TEST(Graphs, LaunchInStreamOrderEvenIntoSeveralStreams) {
  in_child([] {
    const cudaStream_t first = new_stream();
    const cudaStream_t second = new_stream();
    Latch latch;
    std::atomic<int> called{0};
    CUDA_OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
    CUDA_OK(cudaLaunchHostFunc(first, count_up, &called));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(first, &graph));
    const cudaGraphExec_t exec = instantiate(graph);
    CUDA_OK(cudaLaunchHostFunc(first, Latch::wait, &latch));
    CUDA_OK(cudaGraphLaunch(exec, first));
    CUDA_OK(cudaGraphLaunch(exec, second));  // of one graph, launches do not overtake each other
    brief_pause();
    EXPECT_EQ(0, called.load());
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(second));
    CUDA_OK(cudaGraphExecDestroy(exec));  // what is in flight goes on
    latch.open();
    CUDA_OK(cudaStreamSynchronize(second));
    EXPECT_EQ(2, called.load());
    CUDA_OK(cudaStreamSynchronize(first));
  });
}

TEST(Graphs, AreMadeAndLaunchedByManyThreads) {
  in_child([] {
    constexpr int kThreads = 6;
    constexpr int kRounds = 15;
    std::atomic<int> called{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&] {
        const cudaStream_t stream = new_stream();
        const cudaStream_t branch = new_stream();
        const cudaEvent_t event = new_event(cudaEventDisableTiming);
        for (int round = 0; round < kRounds; ++round) {
          CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
          CUDA_OK(cudaLaunchHostFunc(stream, count_up, &called));
          CUDA_OK(cudaEventRecord(event, stream));
          CUDA_OK(cudaStreamWaitEvent(branch, event, 0));
          CUDA_OK(cudaLaunchHostFunc(branch, count_up, &called));
          CUDA_OK(cudaLaunchHostFunc(stream, count_up, &called));
          CUDA_OK(cudaEventRecord(event, branch));
          CUDA_OK(cudaStreamWaitEvent(stream, event, 0));
          cudaGraph_t graph = nullptr;
          CUDA_OK(cudaStreamEndCapture(stream, &graph));
          const cudaGraphExec_t exec = instantiate(graph);
          CUDA_OK(cudaGraphDestroy(graph));
          CUDA_OK(cudaGraphLaunch(exec, stream));
          CUDA_OK(cudaGraphLaunch(exec, branch));
          CUDA_OK(cudaGraphExecDestroy(exec));
        }
        CUDA_OK(cudaStreamSynchronize(stream));
        CUDA_OK(cudaStreamSynchronize(branch));
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(kThreads * kRounds * 6, called.load());
  });
}

TEST(Graphs, KeepUserObjects) {
  in_child([] {
    std::atomic<int> destroyed{0};
    cudaUserObject_t object = nullptr;
    CUDA_OK(cudaUserObjectCreate(&object, &destroyed, count_up, 1, cudaUserObjectNoDestructorSync));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    CUDA_OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    const cudaGraphExec_t exec = instantiate(graph);
    CUDA_OK(cudaGraphDestroy(graph));
    EXPECT_EQ(0, destroyed.load());
    CUDA_OK(cudaGraphExecDestroy(exec));
    EXPECT_EQ(1, destroyed.load());
    EXPECT_EQ(cudaErrorInvalidValue, cudaUserObjectRetain(object, 1));
  });
}

TEST(Graphs, AreDrawn) {
  in_child([] {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t node = nullptr;
    CUDA_OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
    CUDA_OK(cudaGraphAddEmptyNode(&node, graph, &node, 1));
    const std::string path = ::testing::TempDir() + "graph-" + std::to_string(getpid()) + ".dot";
    CUDA_OK(cudaGraphDebugDotPrint(graph, path.c_str(), 0));
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    unlink(path.c_str());
    EXPECT_EQ(0u, text.find("digraph"));
    EXPECT_NE(std::string::npos, text.find("->"));
  });
}

// --- with NCCL ---

class GraphsOfRanks : public ::testing::TestWithParam<As> {};

TEST_P(GraphsOfRanks, HoldCollectivesAndMessages) {
  run_job(GetParam(), 2, [](Rank& me) {
    constexpr size_t kCount = 5000;
    DeviceBuffer<float> mine(kCount);
    DeviceBuffer<float> sum(kCount);
    DeviceBuffer<float> theirs(kCount);
    const cudaStream_t branch = new_stream();
    const cudaEvent_t event = new_event(cudaEventDisableTiming);
    CUDA_OK(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal));
    NCCL_OK(ncclAllReduce(mine.data, sum.data, kCount, ncclFloat, ncclSum, me.comm, me.stream));
    CUDA_OK(cudaEventRecord(event, me.stream));
    CUDA_OK(cudaStreamWaitEvent(branch, event, 0));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclSend(mine.data, kCount, ncclFloat, 1 - me.rank, me.comm, branch));
    NCCL_OK(ncclRecv(theirs.data, kCount, ncclFloat, 1 - me.rank, me.comm, me.stream));
    NCCL_OK(ncclGroupEnd());
    CUDA_OK(cudaEventRecord(event, branch));
    CUDA_OK(cudaStreamWaitEvent(me.stream, event, 0));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(me.stream, &graph));
    EXPECT_EQ(2u, nodes_in(graph));
    const cudaGraphExec_t exec = instantiate(graph);
    for (int round = 0; round < 20; ++round) {
      for (size_t i = 0; i < kCount; ++i) mine[i] = static_cast<float>(me.rank * 100 + round);
      CUDA_OK(cudaGraphLaunch(exec, me.stream));
      // Between two launches, an operation of the same communicator that was not captured.
      if (round % 3 == 0) NCCL_OK(ncclAllReduce(sum.data, sum.data, kCount, ncclFloat, ncclSum, me.comm, me.stream));
      me.sync();
      const float expected = static_cast<float>(100 + 2 * round) * (round % 3 == 0 ? 2 : 1);
      ASSERT_EQ(expected, sum[0]) << round;
      ASSERT_EQ(expected, sum[kCount - 1]) << round;
      ASSERT_EQ(static_cast<float>((1 - me.rank) * 100 + round), theirs[kCount - 1]) << round;
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));

    // Streams of one group must all be captured, by the same graph, or none of them.
    CUDA_OK(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeRelaxed));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclSend(mine.data, 1, ncclFloat, 1 - me.rank, me.comm, branch));
    NCCL_OK(ncclRecv(theirs.data, 1, ncclFloat, 1 - me.rank, me.comm, me.stream));
    EXPECT_EQ(ncclInvalidUsage, ncclGroupEnd());
    EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(me.stream, &graph));
    CUDA_OK(cudaStreamDestroy(branch));
  });
}

INSTANTIATE_TEST_SUITE_P(, GraphsOfRanks, ::testing::Values(As::processes, As::threads),
                         [](const auto& one) { return name_of(one.param); });

}  // namespace
}  // namespace lockstep::test
