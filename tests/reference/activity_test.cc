// SPDX-License-Identifier: MIT
//
// What lockstep_activity_v1 is told. This program exports one, so that the host runtime finds it.

#include <algorithm>
#include <cstring>
#include <string>

#include "interpose/include/lockstep.h"
#include "tests/reference/streams.h"

namespace lockstep::test {
namespace {

struct Told {
  int kind;
  const void* stream;
  int64_t t0, t1;
  std::string name;
};
std::mutex g_mutex;
std::vector<Told> g_told;

std::vector<Told> take() {
  const std::lock_guard lock(g_mutex);
  return std::exchange(g_told, {});
}
int64_t now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

}  // namespace
}  // namespace lockstep::test

extern "C" __attribute__((visibility("default"))) void lockstep_activity_v1(int kind, const void* stream, int64_t t0,
                                                                            int64_t t1, const char* name) {
  const std::lock_guard lock(lockstep::test::g_mutex);
  lockstep::test::g_told.push_back({kind, stream, t0, t1, name});
}

namespace lockstep::test {
namespace {

TEST(Activity, OfAStreamIsToldInOrder) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    DeviceBuffer<int> data(100);
    DeviceBuffer<int> copy(100);
    const int64_t before = now();
    CUDA_OK(cudaMemsetAsync(data.data, 0, 400, stream));
    CUDA_OK(cudaLaunchHostFunc(
        stream, [](void*) { std::this_thread::sleep_for(milliseconds(20)); }, nullptr));
    CUDA_OK(cudaMemcpyAsync(copy.data, data.data, 400, cudaMemcpyDefault, stream));
    CUDA_OK(cudaEventRecord(new_event(), stream));  // no work, so not told
    CUDA_OK(cudaStreamSynchronize(stream));
    const int64_t after = now();
    const auto told = take();
    ASSERT_EQ(3u, told.size());
    const std::pair<int, const char*> expected[] = {{LOCKSTEP_ACTIVITY_MEMSET, "memset"},
                                                    {LOCKSTEP_ACTIVITY_HOST_FUNCTION, "host function"},
                                                    {LOCKSTEP_ACTIVITY_COPY, "memcpy"}};
    int64_t last = before;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(expected[i].first, told[i].kind);
      EXPECT_EQ(expected[i].second, told[i].name);
      EXPECT_EQ(stream, told[i].stream);
      EXPECT_LE(last, told[i].t0);
      EXPECT_LE(told[i].t0, told[i].t1);
      last = told[i].t1;
    }
    EXPECT_LE(last, after);
    EXPECT_GE(told[1].t1 - told[1].t0, 19'000'000);
    int out = 1;
    CUDA_OK(cudaMemcpy(&out, data.data, 4, cudaMemcpyDefault));
    const auto direct = take();
    ASSERT_EQ(1u, direct.size());
    EXPECT_EQ(LOCKSTEP_ACTIVITY_COPY, direct[0].kind);
    EXPECT_EQ(static_cast<const void*>(cudaStreamLegacy), direct[0].stream);
  });
}

TEST(Activity, OfNcclAndOfGraphs) {
  run_job(As::processes, 2, [](Rank& me) {
    DeviceBuffer<float> data(100);
    NCCL_OK(ncclAllReduce(data.data, data.data, 100, ncclFloat, ncclSum, me.comm, me.stream));
    me.sync();
    auto told = take();
    ASSERT_EQ(1u, told.size());
    EXPECT_EQ(LOCKSTEP_ACTIVITY_NCCL, told[0].kind);
    EXPECT_EQ("AllReduce", told[0].name);
    EXPECT_EQ(me.stream, told[0].stream);
    CUDA_OK(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(cudaMemsetAsync(data.data, 0, 400, me.stream));
    NCCL_OK(ncclBroadcast(data.data, data.data, 100, ncclFloat, 0, me.comm, me.stream));
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(me.stream, &graph));
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    me.sync();
    EXPECT_TRUE(take().empty());  // captured, not run
    CUDA_OK(cudaGraphLaunch(exec, me.stream));
    CUDA_OK(cudaGraphLaunch(exec, me.stream));
    me.sync();
    told = take();
    ASSERT_EQ(4u, told.size());
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ((i % 2 == 0 ? LOCKSTEP_ACTIVITY_MEMSET : LOCKSTEP_ACTIVITY_NCCL) | LOCKSTEP_ACTIVITY_IN_GRAPH,
                told[i].kind);
      EXPECT_EQ(i % 2 == 0 ? "memset" : "Broadcast", told[i].name);
    }
  });
}

}  // namespace
}  // namespace lockstep::test
