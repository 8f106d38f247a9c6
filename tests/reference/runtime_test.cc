// SPDX-License-Identifier: MIT
//
// The CUDA runtime's calls that are not about order: devices, what pointers are, pools, rows and boxes, other
// processes' memory, and what is said about functions that are not there.

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstring>
#include <set>
#include <string>

#include "tests/reference/streams.h"

namespace lockstep::test {
namespace {

TEST(Devices, SayWhatTheyAre) {
  in_child([] {
    char text[32] = "";
    CUDA_OK(cudaDeviceGetPCIBusId(text, sizeof text, 3));
    int device = -1;
    CUDA_OK(cudaDeviceGetByPCIBusId(&device, text));
    EXPECT_EQ(3, device);
    EXPECT_EQ(cudaErrorInvalidValue, cudaDeviceGetPCIBusId(text, 5, 0));
    EXPECT_EQ(cudaErrorInvalidDevice, cudaDeviceGetPCIBusId(text, sizeof text, 8));
    EXPECT_EQ(cudaErrorInvalidDevice, cudaDeviceGetByPCIBusId(&device, "ffff:00:00.0"));
    std::set<std::string> all;
    for (int d = 0; d < 8; ++d) {
      CUDA_OK(cudaDeviceGetPCIBusId(text, sizeof text, d));
      all.insert(text);
    }
    EXPECT_EQ(8u, all.size());
    int value = 0;
    cudaDeviceProp prop{};
    CUDA_OK(cudaGetDeviceProperties(&prop, 2));
    CUDA_OK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 2));
    EXPECT_EQ(prop.warpSize, value);
    CUDA_OK(cudaDeviceGetAttribute(&value, cudaDevAttrPciBusId, 2));
    EXPECT_EQ(prop.pciBusID, value);
    CUDA_OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 2));
    EXPECT_EQ(prop.major, value);
    EXPECT_EQ(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, -1));
    EXPECT_EQ(cudaErrorInvalidValue, cudaDeviceGetAttribute(nullptr, cudaDevAttrWarpSize, 0));
    size_t limit = 0;
    CUDA_OK(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
    CUDA_OK(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
    EXPECT_EQ(4096u, limit);
    EXPECT_EQ(cudaErrorUnsupportedLimit, cudaDeviceSetLimit(static_cast<cudaLimit>(99), 1));
  });
}

TEST(Devices, ReachEachOtherWhenAskedTo) {
  in_child([] {
    int can = 0;
    CUDA_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    EXPECT_EQ(1, can);
    CUDA_OK(cudaDeviceCanAccessPeer(&can, 1, 1));
    EXPECT_EQ(0, can);
    EXPECT_EQ(cudaErrorInvalidDevice, cudaDeviceCanAccessPeer(&can, 0, 8));
    EXPECT_EQ(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(0, 0));
    EXPECT_EQ(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
    CUDA_OK(cudaDeviceEnablePeerAccess(1, 0));
    EXPECT_EQ(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
    CUDA_OK(cudaDeviceDisablePeerAccess(1));
    DeviceBuffer<int> here(10);
    CUDA_OK(cudaSetDevice(1));
    DeviceBuffer<int> there(10);
    const cudaStream_t stream = new_stream();
    cudaPointerAttributes what{};
    CUDA_OK(cudaPointerGetAttributes(&what, there.data));
    EXPECT_EQ(1, what.device);
    for (size_t i = 0; i < 10; ++i) here[i] = static_cast<int>(i) + 1;
    CUDA_OK(cudaMemcpyPeer(there.data, 1, here.data, 0, 40));
    EXPECT_EQ(10, there[9]);
    CUDA_OK(cudaMemset(here.data, 0, 40));
    // Device 1's default stream sets the bytes; `stream` does not wait for it.
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaMemcpyPeerAsync(here.data, 0, there.data, 1, 40, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(10, here[9]);
    EXPECT_EQ(cudaErrorInvalidDevice, cudaMemcpyPeer(there.data, 9, here.data, 0, 40));
    int device = 0;
    CUDA_OK(cudaStreamGetDevice(stream, &device));
    EXPECT_EQ(1, device);
  });
}

TEST(Streams, TellPriorityFlagsAndId) {
  in_child([] {
    int least = 1;
    int greatest = 1;
    CUDA_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    EXPECT_LT(greatest, least);
    cudaStream_t stream = nullptr;
    CUDA_OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest - 100));
    int priority = 1;
    CUDA_OK(cudaStreamGetPriority(stream, &priority));
    EXPECT_EQ(greatest, priority);
    unsigned flags = 9;
    CUDA_OK(cudaStreamGetFlags(stream, &flags));
    EXPECT_EQ(static_cast<unsigned>(cudaStreamNonBlocking), flags);
    CUDA_OK(cudaStreamGetFlags(nullptr, &flags));
    EXPECT_EQ(0u, flags);
    unsigned long long id = 0;
    unsigned long long other = 0;
    CUDA_OK(cudaStreamGetId(stream, &id));
    CUDA_OK(cudaStreamDestroy(stream));
    CUDA_OK(cudaStreamCreate(&stream));
    CUDA_OK(cudaStreamGetId(stream, &other));
    EXPECT_NE(id, other);
    EXPECT_EQ(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&stream, 2));
    EXPECT_EQ(cudaErrorInvalidValue, cudaStreamCreate(nullptr));
  });
}

TEST(Pointers, AreKnownByKind) {
  in_child([] {
    cudaPointerAttributes what{};
    void* pinned = nullptr;
    CUDA_OK(cudaMallocHost(&pinned, 100));
    CUDA_OK(cudaPointerGetAttributes(&what, static_cast<char*>(pinned) + 99));
    EXPECT_EQ(cudaMemoryTypeHost, what.type);
    EXPECT_EQ(static_cast<char*>(pinned) + 99, what.hostPointer);
    void* device = nullptr;
    CUDA_OK(cudaHostGetDevicePointer(&device, pinned, 0));
    EXPECT_EQ(pinned, device);
    EXPECT_EQ(cudaErrorInvalidValue, cudaFree(pinned));
    CUDA_OK(cudaFreeHost(pinned));
    float* managed = nullptr;
    CUDA_OK(cudaMallocManaged(&managed, 100));
    CUDA_OK(cudaPointerGetAttributes(&what, managed));
    EXPECT_EQ(cudaMemoryTypeManaged, what.type);
    EXPECT_EQ(managed, what.devicePointer);
    EXPECT_EQ(managed, what.hostPointer);
    managed[3] = 1;
    const cudaMemLocation here{cudaMemLocationTypeDevice, 0};
    CUDA_OK(cudaMemAdvise(managed, 100, cudaMemAdviseSetPreferredLocation, here));
    CUDA_OK(cudaMemPrefetchAsync(managed, 100, here, 0, nullptr));
    EXPECT_EQ(cudaErrorInvalidValue, cudaMallocManaged(&managed, 0));
    DeviceBuffer<int> data(4);
    CUDA_OK(cudaPointerGetAttributes(&what, data.data));
    EXPECT_EQ(cudaMemoryTypeDevice, what.type);
    EXPECT_EQ(nullptr, what.hostPointer);
  });
}

TEST(Pointers, MayBeRegistered) {
  in_child([] {
    std::vector<char> memory(1 << 16);
    cudaPointerAttributes what{};
    EXPECT_EQ(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(memory.data()));
    CUDA_OK(cudaSetDevice(2));
    CUDA_OK(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable));
    EXPECT_EQ(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(memory.data() + 8, 16, 0));
    EXPECT_EQ(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(memory.data() + 8));
    CUDA_OK(cudaPointerGetAttributes(&what, memory.data() + 8));
    EXPECT_EQ(cudaMemoryTypeHost, what.type);
    EXPECT_EQ(2, what.device);
    unsigned flags = 0;
    CUDA_OK(cudaHostGetFlags(&flags, memory.data()));
    EXPECT_EQ(static_cast<unsigned>(cudaHostRegisterPortable), flags);
    EXPECT_EQ(cudaErrorInvalidValue, cudaFreeHost(memory.data()));
    // Registered memory is pinned: a copy to it does not hold the host up.
    const cudaStream_t stream = new_stream();
    DeviceBuffer<char> data(64);
    Latch latch;
    CUDA_OK(cudaLaunchHostFunc(stream, Latch::wait, &latch));
    CUDA_OK(cudaMemcpyAsync(memory.data(), data.data, 64, cudaMemcpyDeviceToHost, stream));
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaHostUnregister(memory.data()));
    CUDA_OK(cudaPointerGetAttributes(&what, memory.data()));
    EXPECT_EQ(cudaMemoryTypeUnregistered, what.type);
  });
}

TEST(Copies, OfRowsAndBoxes) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    char* rows = nullptr;
    size_t pitch = 0;
    CUDA_OK(cudaMallocPitch(&rows, &pitch, 100, 20));
    EXPECT_EQ(0u, pitch % 512);
    CUDA_OK(cudaMemset2D(rows, pitch, 7, 100, 20));
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(7, rows[19 * pitch + 99]);
    EXPECT_EQ(0, rows[pitch + 100]);
    std::vector<char> tight(100 * 20, 1);
    CUDA_OK(cudaMemcpy2D(tight.data(), 100, rows, pitch, 100, 20, cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::vector<char>(2000, 7), tight);
    for (size_t i = 0; i < 2000; ++i) tight[i] = static_cast<char>(i % 101);
    CUDA_OK(cudaMemcpy2DAsync(rows + 1, pitch, tight.data(), 100, 99, 20, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(7, rows[5 * pitch]);
    EXPECT_EQ(tight[5 * 100 + 98], rows[5 * pitch + 99]);
    EXPECT_EQ(cudaErrorInvalidPitchValue, cudaMemcpy2D(rows, 50, tight.data(), 100, 99, 2, cudaMemcpyDefault));
    EXPECT_EQ(cudaErrorInvalidMemcpyDirection, cudaMemcpy(rows, tight.data(), 1, static_cast<cudaMemcpyKind>(9)));

    cudaPitchedPtr box{};
    CUDA_OK(cudaMalloc3D(&box, {64, 8, 4}));
    EXPECT_EQ(8u, box.ysize);
    CUDA_OK(cudaMemset3D(box, 9, {64, 8, 4}));
    std::vector<char> inner(2 * 3 * 10);
    cudaMemcpy3DParms params{};
    params.srcPtr = box;
    params.srcPos = {4, 5, 2};
    params.dstPtr = {inner.data(), 10, 10, 3};
    params.extent = {10, 3, 2};
    params.kind = cudaMemcpyDeviceToHost;
    char* const base = static_cast<char*>(box.ptr);
    CUDA_OK(cudaDeviceSynchronize());
    base[(3 * 8 + 7) * box.pitch + 13] = 5;  // the last byte of the box that is copied
    CUDA_OK(cudaMemcpy3D(&params));
    EXPECT_EQ(9, inner[0]);
    EXPECT_EQ(5, inner[59]);
    CUDA_OK(cudaMemset(inner.data(), 0, inner.size()));
    CUDA_OK(cudaMemcpy3DAsync(&params, stream));
    EXPECT_EQ(5, inner[59]);  // pageable: it waits
    params.dstArray = reinterpret_cast<cudaArray_t>(1);
    EXPECT_EQ(cudaErrorNotSupported, cudaMemcpy3D(&params));
  });
}

TEST(Pools, CountAndKeepApart) {
  in_child([] {
    const cudaStream_t stream = new_stream();
    cudaMemPool_t usual = nullptr;
    cudaMemPool_t mine = nullptr;
    CUDA_OK(cudaDeviceGetDefaultMemPool(&usual, 0));
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location = {cudaMemLocationTypeDevice, 0};
    CUDA_OK(cudaMemPoolCreate(&mine, &props));
    EXPECT_NE(usual, mine);
    const auto used = [](cudaMemPool_t pool, cudaMemPoolAttr which) {
      uint64_t value = 0;
      EXPECT_EQ(cudaSuccess, cudaMemPoolGetAttribute(pool, which, &value));
      return value;
    };
    void* block = nullptr;
    void* other = nullptr;
    CUDA_OK(cudaMallocFromPoolAsync(&block, 1000, mine, stream));
    CUDA_OK(cudaMallocAsync(&other, 500, stream));
    EXPECT_EQ(1000u, used(mine, cudaMemPoolAttrUsedMemCurrent));
    EXPECT_EQ(500u, used(usual, cudaMemPoolAttrUsedMemCurrent));
    Latch latch;
    CUDA_OK(cudaLaunchHostFunc(stream, Latch::wait, &latch));
    CUDA_OK(cudaFreeAsync(block, stream));
    EXPECT_EQ(1000u, used(mine, cudaMemPoolAttrUsedMemCurrent));  // its stream is not there yet
    latch.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(0u, used(mine, cudaMemPoolAttrUsedMemCurrent));
    EXPECT_EQ(1000u, used(mine, cudaMemPoolAttrUsedMemHigh));
    CUDA_OK(cudaFree(other));
    EXPECT_EQ(0u, used(usual, cudaMemPoolAttrUsedMemCurrent));
    uint64_t threshold = 1 << 20;
    CUDA_OK(cudaMemPoolSetAttribute(mine, cudaMemPoolAttrReleaseThreshold, &threshold));
    EXPECT_EQ(threshold, used(mine, cudaMemPoolAttrReleaseThreshold));
    CUDA_OK(cudaDeviceSetMemPool(0, mine));
    CUDA_OK(cudaMallocAsync(&block, 300, stream));
    EXPECT_EQ(300u, used(mine, cudaMemPoolAttrUsedMemCurrent));
    EXPECT_EQ(cudaErrorInvalidValue, cudaDeviceSetMemPool(1, mine));
    EXPECT_EQ(cudaErrorInvalidValue, cudaMemPoolDestroy(usual));
    CUDA_OK(cudaMemPoolTrimTo(mine, 0));
    CUDA_OK(cudaMemPoolDestroy(mine));
    EXPECT_EQ(cudaErrorInvalidValue, cudaMemPoolTrimTo(mine, 0));
    CUDA_OK(cudaFreeAsync(block, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    cudaMemPool_t current = nullptr;
    CUDA_OK(cudaDeviceGetMemPool(&current, 0));
    EXPECT_EQ(usual, current);
  });
}

// What two processes tell each other, in memory that both have from before they were two.
struct Shared {
  cudaIpcMemHandle_t handle;
  std::atomic<int> stage;
};

TEST(Ipc, OpensMemoryOfAnotherProcess) {
  auto* const shared =
      static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(MAP_FAILED, static_cast<void*>(shared));
  run_ranks(As::processes, 2, [&](int rank) {
    if (rank == 0) {
      int* data = nullptr;
      CUDA_OK(cudaSetDevice(3));
      CUDA_OK(cudaMalloc(&data, 4096));
      data[7] = 42;
      CUDA_OK(cudaIpcGetMemHandle(&shared->handle, data + 5));
      void* mine = nullptr;
      EXPECT_EQ(cudaErrorDeviceUninitialized, cudaIpcOpenMemHandle(&mine, shared->handle, 1));
      shared->stage = 1;
      wait_until([&] { return shared->stage == 2; });
      EXPECT_EQ(43, data[7]);
      return;
    }
    wait_until([&] { return shared->stage == 1; });
    void* opened = nullptr;
    CUDA_OK(cudaIpcOpenMemHandle(&opened, shared->handle, cudaIpcMemLazyEnablePeerAccess));
    cudaPointerAttributes what{};
    CUDA_OK(cudaPointerGetAttributes(&what, static_cast<char*>(opened) + 4095));
    EXPECT_EQ(cudaMemoryTypeDevice, what.type);
    EXPECT_EQ(3, what.device);
    int value = 0;
    CUDA_OK(cudaMemcpy(&value, static_cast<int*>(opened) + 7, sizeof value, cudaMemcpyDeviceToHost));
    EXPECT_EQ(42, value);
    ++value;
    CUDA_OK(cudaMemcpy(static_cast<int*>(opened) + 7, &value, sizeof value, cudaMemcpyHostToDevice));
    EXPECT_EQ(cudaErrorInvalidValue, cudaFree(opened));
    CUDA_OK(cudaIpcCloseMemHandle(opened));
    EXPECT_EQ(cudaErrorInvalidValue, cudaIpcCloseMemHandle(opened));
    shared->stage = 2;
    cudaIpcMemHandle_t garbage{};
    EXPECT_EQ(cudaErrorInvalidValue, cudaIpcOpenMemHandle(&opened, garbage, 1));
    void* local = nullptr;
    EXPECT_EQ(cudaErrorInvalidValue, cudaIpcGetMemHandle(&garbage, &local));
  });
  munmap(shared, sizeof(Shared));
}

TEST(Absent, FunctionsFailForGoodAndSayWhich) {
  in_child([] {
    using Function = cudaError_t (*)(void*, void*, void*);
    const auto absent = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "cudaMallocArray"));
    ASSERT_NE(nullptr, absent);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(cudaErrorNotSupported, absent(nullptr, nullptr, nullptr));
    EXPECT_EQ(cudaErrorNotSupported, absent(nullptr, nullptr, nullptr));
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(std::string::npos, said.find("cudaMallocArray")) << said;
    EXPECT_EQ(said.find("cudaMallocArray"), said.rfind("cudaMallocArray")) << said;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(cudaErrorNotSupported, cudaGetLastError());
    EXPECT_EQ(cudaErrorNotSupported, cudaPeekAtLastError());
    void* data = nullptr;
    CUDA_OK(cudaMalloc(&data, 8));  // what is there goes on working
    EXPECT_EQ(cudaErrorNotSupported, cudaGetLastError());
  });
  in_child([] {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaErrorInvalidValue, cudaEventCreateWithFlags(&event, cudaEventInterprocess));
    EXPECT_EQ(cudaErrorNotSupported, cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming));
    EXPECT_EQ(cudaErrorNotSupported, cudaGetLastError());
  });
}

// Every function of the list, with nothing but zeros, in a child forked after its parent had begun.
TEST(Absent, InAForkedChildEveryCallSaysSo) {
  in_child([] {
    void* data = nullptr;
    CUDA_OK(cudaMalloc(&data, 64));
    std::vector<Child> child;
    child.emplace_back([] {
      using Function = cudaError_t (*)(void*, void*, void*, void*, void*, void*, void*, void*);
      int called = 0;
      const auto call = [&](const char* name) {
        const auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
        ASSERT_NE(nullptr, function) << name;
        EXPECT_EQ(cudaErrorInitializationError,
                  function(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr))
            << name;
        ++called;
      };
      const std::set<std::string> stateless{"cudaRuntimeGetVersion", "cudaDriverGetVersion",
                                            // Structures on the stack, which this call does not put there.
                                            "cudaMalloc3D", "cudaMemset3D", "cudaMemset3DAsync", "cudaMemset3D_ptds",
                                            "cudaMemset3DAsync_ptsz", "cudaIpcOpenMemHandle"};
#define LOCKSTEP_CUDART(name, params, args) \
  if (stateless.count(#name) == 0) call(#name);
#define LOCKSTEP_CUDART_PTSZ(name, params, args) \
  LOCKSTEP_CUDART(name, params, args)            \
  if (stateless.count(#name) == 0) call(#name "_ptsz");
#define LOCKSTEP_CUDART_PTDS(name, params, args) \
  LOCKSTEP_CUDART(name, params, args)            \
  if (stateless.count(#name) == 0) call(#name "_ptds");
#include "cuda_functions.def"
      EXPECT_GT(called, 150);
      EXPECT_EQ(cudaErrorInitializationError, cudaGetLastError());
    });
    expect_all_end_well(child);
  });
}

TEST(Absent, InAForkedChildNcclSaysSoToo) {
  in_child([] {
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    Rank me(0, 1, id);
    DeviceBuffer<float> data(4);
    std::vector<Child> child;
    child.emplace_back([&] {
      EXPECT_EQ(ncclUnhandledCudaError, ncclAllReduce(data.data, data.data, 4, ncclFloat, ncclSum, me.comm, me.stream));
      EXPECT_NE(nullptr, std::strstr(ncclGetLastError(nullptr), "forked")) << ncclGetLastError(nullptr);
      EXPECT_EQ(ncclUnhandledCudaError, ncclBroadcast(data.data, data.data, 4, ncclFloat, 0, me.comm, me.stream));
      ncclGroupStart();
      ncclSend(data.data, 4, ncclFloat, 0, me.comm, me.stream);
      ncclRecv(data.data, 4, ncclFloat, 0, me.comm, me.stream);
      EXPECT_EQ(ncclUnhandledCudaError, ncclGroupEnd());
      ncclComm_t other = nullptr;
      EXPECT_EQ(ncclUnhandledCudaError, ncclCommSplit(me.comm, 0, 0, &other, nullptr));
      const int device = 0;
      EXPECT_EQ(ncclUnhandledCudaError, ncclCommInitAll(&other, 1, &device));
      EXPECT_EQ(ncclUnhandledCudaError, ncclCommInitRank(&other, 1, id, 0));
      void* memory = nullptr;
      EXPECT_EQ(ncclUnhandledCudaError, ncclMemAlloc(&memory, 8));
    });
    expect_all_end_well(child);
    me.close();
  });
}

}  // namespace
}  // namespace lockstep::test
