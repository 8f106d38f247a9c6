// SPDX-License-Identifier: MIT
//
// libcuda.so.1 as tools use it: found at run time, by dlsym and by its own cuGetProcAddress, beside a program that uses
// the runtime. CUresult's numbers are written out, as such tools know them.

#include <dlfcn.h>

#include <cstring>
#include <string>

#include "tests/reference/streams.h"

namespace lockstep::test {
namespace {

using Ptr = unsigned long long;

template <class F>
F* driver(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  EXPECT_NE(nullptr, library) << dlerror();
  void* const function = dlsym(library, name);
  EXPECT_NE(nullptr, function) << name;
  return reinterpret_cast<F*>(function);
}

TEST(Driver, SharesEverythingWithTheRuntime) {
  in_child([] {
    ASSERT_EQ(0, driver<int(unsigned)>("cuInit")(0));
    EXPECT_EQ(1, driver<int(unsigned)>("cuInit")(1));
    void* context = nullptr;
    void* other = nullptr;
    CUDA_OK(cudaSetDevice(2));
    EXPECT_EQ(0, driver<int(void**)>("cuCtxGetCurrent")(&context));
    int device = -1;
    EXPECT_EQ(0, driver<int(void**, int)>("cuDevicePrimaryCtxRetain")(&other, 1));
    EXPECT_EQ(101, driver<int(void**, int)>("cuDevicePrimaryCtxRetain")(&other, 8));
    EXPECT_NE(context, other);
    EXPECT_EQ(0, driver<int(void*)>("cuCtxPushCurrent_v2")(other));
    CUDA_OK(cudaGetDevice(&device));
    EXPECT_EQ(1, device);
    EXPECT_EQ(0, driver<int(void**)>("cuCtxPopCurrent_v2")(&other));
    EXPECT_EQ(201, driver<int(void**)>("cuCtxPopCurrent_v2")(&other));
    EXPECT_EQ(0, driver<int(int*)>("cuCtxGetDevice")(&device));
    EXPECT_EQ(2, device);

    Ptr memory = 0;
    EXPECT_EQ(1, driver<int(Ptr*, size_t)>("cuMemAlloc_v2")(&memory, 0));
    ASSERT_EQ(0, driver<int(Ptr*, size_t)>("cuMemAlloc_v2")(&memory, 1024));
    auto* const ints = reinterpret_cast<int*>(memory);
    const auto attribute = driver<int(void*, int, Ptr)>("cuPointerGetAttribute");
    unsigned type = 0;
    Ptr base = 0;
    size_t size = 0;
    EXPECT_EQ(0, attribute(&type, 2, memory));
    EXPECT_EQ(2u, type);
    EXPECT_EQ(0, attribute(&device, 9, memory + 100));
    EXPECT_EQ(2, device);
    EXPECT_EQ(0, attribute(&base, 11, memory + 100));
    EXPECT_EQ(memory, base);
    EXPECT_EQ(1, attribute(&type, 2, reinterpret_cast<Ptr>(&base)));
    EXPECT_EQ(0, driver<int(Ptr*, size_t*, Ptr)>("cuMemGetAddressRange_v2")(&base, &size, memory + 7));
    EXPECT_EQ(1024u, size);
    EXPECT_EQ(500, driver<int(Ptr*, size_t*, Ptr)>("cuMemGetAddressRange_v2")(&base, &size, 8));

    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    ASSERT_EQ(0, driver<int(cudaStream_t*, unsigned)>("cuStreamCreate")(&stream, 1));
    ASSERT_EQ(0, driver<int(cudaEvent_t*, unsigned)>("cuEventCreate")(&event, 2));
    const int source[2] = {3, 4};
    int back[2] = {};
    EXPECT_EQ(0, driver<int(Ptr, const void*, size_t)>("cuMemcpyHtoD_v2")(memory, source, 8));
    EXPECT_EQ(4, ints[1]);
    Latch latch;
    CUDA_OK(cudaLaunchHostFunc(stream, Latch::wait, &latch));
    EXPECT_EQ(0, driver<int(cudaEvent_t, cudaStream_t)>("cuEventRecord")(event, stream));
    EXPECT_EQ(600, driver<int(cudaEvent_t)>("cuEventQuery")(event));
    EXPECT_EQ(600, driver<int(cudaStream_t)>("cuStreamQuery")(stream));
    latch.open();
    EXPECT_EQ(0, driver<int(cudaEvent_t)>("cuEventSynchronize")(event));
    EXPECT_EQ(0, driver<int(cudaEvent_t)>("cuEventQuery")(event));
    EXPECT_EQ(0, driver<int(void*, Ptr, size_t, cudaStream_t)>("cuMemcpyDtoHAsync_v2")(back, memory, 8, stream));
    EXPECT_EQ(3, back[0]);
    EXPECT_EQ(0, driver<int(cudaStream_t, void**)>("cuStreamGetCtx")(stream, &other));
    EXPECT_EQ(context, other);
    float ms = 0;
    EXPECT_EQ(400, driver<int(float*, cudaEvent_t, cudaEvent_t)>("cuEventElapsedTime")(&ms, event, event));
    EXPECT_EQ(0, driver<int(cudaEvent_t)>("cuEventDestroy_v2")(event));
    EXPECT_EQ(400, driver<int(cudaEvent_t)>("cuEventQuery")(event));
    EXPECT_EQ(0, driver<int(cudaStream_t)>("cuStreamDestroy_v2")(stream));
    EXPECT_EQ(400, driver<int(cudaStream_t)>("cuStreamSynchronize")(stream));
    EXPECT_EQ(0, driver<int(Ptr)>("cuMemFree_v2")(memory));
    EXPECT_EQ(1, driver<int(Ptr)>("cuMemFree_v2")(memory));
    EXPECT_EQ(101, driver<int(int*, int)>("cuDeviceGet")(&device, 8));
  });
}

TEST(Driver, SeesCapturesAndLaunchesGraphs) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    int status = -1;
    const auto capturing = driver<int(cudaStream_t, int*)>("cuStreamIsCapturing");
    EXPECT_EQ(0, capturing(stream, &status));
    EXPECT_EQ(0, status);
    int mode = 2;
    EXPECT_EQ(0, driver<int(int*)>("cuThreadExchangeStreamCaptureMode")(&mode));
    EXPECT_EQ(0, mode);
    EXPECT_EQ(0, driver<int(int*)>("cuThreadExchangeStreamCaptureMode")(&mode));
    EXPECT_EQ(2, mode);
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(0, capturing(stream, &status));
    EXPECT_EQ(1, status);
    std::atomic<int> called{0};
    CUDA_OK(cudaLaunchHostFunc(
        stream, [](void* n) { static_cast<std::atomic<int>*>(n)->fetch_add(1); }, &called));
    unsigned long long id = 0;
    cudaGraph_t graph = nullptr;
    const cudaGraphNode_t* tail = nullptr;
    size_t count = 0;
    EXPECT_EQ(0, (driver<int(cudaStream_t, int*, unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**, size_t*)>(
                     "cuStreamGetCaptureInfo_v2")(stream, &status, &id, &graph, &tail, &count)));
    EXPECT_EQ(1u, count);
    EXPECT_NE(0u, id);
    cudaGraph_t ended = nullptr;
    EXPECT_EQ(0, driver<int(cudaStream_t, cudaGraph_t*)>("cuStreamEndCapture")(stream, &ended));
    EXPECT_EQ(graph, ended);
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(0, driver<int(cudaGraphExec_t*, cudaGraph_t, unsigned long long)>("cuGraphInstantiateWithFlags")(
                     &exec, graph, 0));
    EXPECT_EQ(0, driver<int(cudaGraphExec_t, cudaStream_t)>("cuGraphLaunch")(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(1, called.load());
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(900, driver<int(cudaStream_t)>("cuStreamSynchronize")(stream));
    EXPECT_EQ(0, capturing(stream, &status));
    EXPECT_EQ(2, status);
    EXPECT_EQ(901, driver<int(cudaStream_t, cudaGraph_t*)>("cuStreamEndCapture")(stream, &ended));
  });
}

TEST(Driver, FindsItsFunctions) {
  in_child([] {
    void* function = nullptr;
    int status = -1;
    using Find = int(const char*, void**, int, unsigned long long, int*);
    const auto find = driver<Find>("cuGetProcAddress_v2");
    EXPECT_EQ(0, find("cuMemAlloc", &function, 13000, 0, &status));
    EXPECT_EQ(reinterpret_cast<void*>(driver<int()>("cuMemAlloc_v2")), function);
    EXPECT_EQ(0, status);
    EXPECT_EQ(0, find("cuGetProcAddress", &function, 12000, 0, &status));
    EXPECT_EQ(reinterpret_cast<void*>(find), function);
    EXPECT_EQ(0, find("cuStreamGetCaptureInfo", &function, 13000, 0, &status));
    EXPECT_EQ(reinterpret_cast<void*>(driver<int()>("cuStreamGetCaptureInfo_v3")), function);
    EXPECT_EQ(0, find("cuStreamGetCaptureInfo", &function, 11030, 0, &status));
    EXPECT_EQ(reinterpret_cast<void*>(driver<int()>("cuStreamGetCaptureInfo_v2")), function);
    EXPECT_EQ(500, find("cuStreamGetCaptureInfo", &function, 9000, 0, &status));
    EXPECT_EQ(2, status);
    EXPECT_EQ(0, find("cuStreamQuery", &function, 13000, 2, &status));
    EXPECT_EQ(reinterpret_cast<void*>(driver<int()>("cuStreamQuery_ptsz")), function);
    EXPECT_EQ(500, find("cuNoSuchThing", &function, 13000, 0, &status));
    EXPECT_EQ(1, status);
    EXPECT_EQ(nullptr, function);
    EXPECT_EQ(1, find(nullptr, &function, 13000, 0, &status));

    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    CUDA_OK(cudaGetDriverEntryPoint("cuEventQuery", &function, cudaEnableDefault, &found));
    EXPECT_EQ(cudaDriverEntryPointSuccess, found);
    EXPECT_EQ(reinterpret_cast<void*>(driver<int()>("cuEventQuery")), function);
    CUDA_OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 13000, cudaEnableDefault, &found));
    EXPECT_EQ(cudaDriverEntryPointSymbolNotFound, found);
    EXPECT_EQ(nullptr, function);
  });
}

TEST(Driver, NamesItsErrors) {
  const char* text = nullptr;
  const auto name = driver<int(int, const char**)>("cuGetErrorName");
  const auto say = driver<int(int, const char**)>("cuGetErrorString");
  EXPECT_EQ(0, name(400, &text));
  EXPECT_STREQ("CUDA_ERROR_INVALID_HANDLE", text);
  EXPECT_EQ(0, say(400, &text));
  EXPECT_STREQ("invalid resource handle", text);
  EXPECT_EQ(0, name(901, &text));
  EXPECT_STREQ("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", text);
  EXPECT_EQ(1, name(12345, &text));
  EXPECT_EQ(nullptr, text);
  EXPECT_EQ(1, say(12345, &text));
}

// What a static cudart asks for before all else: its own error says nothing of where it is.
TEST(Driver, TellsAnotherCudaRuntimeWhereItIs) {
  in_child([] {
    const auto find = driver<int(const char*, void**, int, unsigned long long, int*)>("cuGetProcAddress_v2");
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 2; ++i) {
      void* function = nullptr;
      int status = 0;
      EXPECT_EQ(500, find("cuGetExportTable", &function, 13000, 0, &status));
      EXPECT_EQ(nullptr, function);
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(0u, said.find("lockstep host runtime: a CUDA runtime other than the host runtime's")) << said;
    EXPECT_EQ(said.size() - 1, said.find('\n')) << "said once: " << said;
  });
}

TEST(Driver, RefusesDeviceCode) {
  in_child([] {
    EXPECT_EQ(801, driver<int(void*, const void*)>("cuModuleLoadData")(nullptr, ""));
    EXPECT_EQ(cudaErrorNotSupported, cudaDeviceSynchronize());
  });
}

}  // namespace
}  // namespace lockstep::test
