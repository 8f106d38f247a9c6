// SPDX-License-Identifier: MIT
//
// The driver's own interface (cu*), as far as host-side programs and tools ask for it. CUresult and cudaError_t share
// their numbers, and a handle of one is a handle of the other, so nearly all of it forwards to the runtime's functions.
//
// There is one context a device: its number plus one, so that it is not null. It is always current somewhere; cuInit is
// welcome and not needed.

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/registered.h"
#include "reference/cuda/resolve.h"
#include "reference/cuda/runtime.h"

#define LOCKSTEP_DRIVER extern "C" __attribute__((visibility("default")))

using CUresult = int;
using CUdevice = int;
using CUcontext = void*;
using CUdeviceptr = unsigned long long;

using lockstep::host::engine;
using lockstep::host::known_memory;
using lockstep::host::Memory;

namespace {

bool is_device(int device) { return device >= 0 && device < engine().device_count(); }
CUcontext context_of(int device) { return reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1); }
int device_of(CUcontext context) { return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1; }
void* at(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

thread_local std::vector<int> t_pushed;  // devices under the current one

class PerThread {
 public:
  PerThread() : before_(engine().null_is_per_thread(true)) {}
  ~PerThread() { engine().null_is_per_thread(before_); }
  PerThread(const PerThread&) = delete;
  PerThread& operator=(const PerThread&) = delete;

 private:
  const bool before_;
};

// cudaMalloc(0) is no error, cuMemAlloc(0) is.
CUresult allocate(CUdeviceptr* pointer, size_t bytes) {
  if (pointer == nullptr || bytes == 0) return cudaErrorInvalidValue;
  void* block = nullptr;
  const CUresult result = lockstep_host_cudaMalloc(&block, bytes);
  *pointer = reinterpret_cast<CUdeviceptr>(block);
  return result;
}

}  // namespace

// A driver function that forwards, and its twin for programs whose null stream is the thread's own.
#define LOCKSTEP_CU(name, params, call) \
  LOCKSTEP_DRIVER CUresult name params { return call; }
#define LOCKSTEP_CU_TWIN(name, twin, params, call) \
  LOCKSTEP_CU(name, params, call)                  \
  LOCKSTEP_DRIVER CUresult twin params {           \
    const PerThread scope;                         \
    return call;                                   \
  }
#define LOCKSTEP_CU_PTSZ(name, params, call) LOCKSTEP_CU_TWIN(name, name##_ptsz, params, call)
#define LOCKSTEP_CU_PTDS(name, params, call) LOCKSTEP_CU_TWIN(name, name##_ptds, params, call)

// --- devices ---

LOCKSTEP_DRIVER CUresult cuInit(unsigned int flags) {
  return flags != 0 ? cudaErrorInvalidValue : lockstep_host_sticky_error();
}
LOCKSTEP_CU(cuDriverGetVersion, (int* version), lockstep_host_cudaDriverGetVersion(version))
LOCKSTEP_CU(cuDeviceGetCount, (int* count), lockstep_host_cudaGetDeviceCount(count))
LOCKSTEP_DRIVER CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (device == nullptr) return cudaErrorInvalidValue;
  if (!is_device(ordinal)) return cudaErrorInvalidDevice;
  *device = ordinal;
  return cudaSuccess;
}
LOCKSTEP_DRIVER CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (name == nullptr || length <= 0) return cudaErrorInvalidValue;
  cudaDeviceProp properties;
  if (const cudaError_t e = lockstep_host_cudaGetDeviceProperties(&properties, device)) return e;
  std::snprintf(name, static_cast<size_t>(length), "%s", properties.name);
  return cudaSuccess;
}
LOCKSTEP_DRIVER CUresult cuDeviceGetUuid_v2(void* uuid, CUdevice device) {
  if (uuid == nullptr) return cudaErrorInvalidValue;
  cudaDeviceProp properties;
  if (const cudaError_t e = lockstep_host_cudaGetDeviceProperties(&properties, device)) return e;
  std::memcpy(uuid, properties.uuid, sizeof properties.uuid);
  return cudaSuccess;
}
LOCKSTEP_CU(cuDeviceGetUuid, (void* uuid, CUdevice device), cuDeviceGetUuid_v2(uuid, device))
LOCKSTEP_DRIVER CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  size_t available = 0;
  return lockstep_host_cudaMemGetInfo(&available, bytes);
}
LOCKSTEP_CU(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device),
            lockstep_host_cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device))
LOCKSTEP_CU(cuDeviceGetPCIBusId, (char* text, int length, CUdevice device),
            lockstep_host_cudaDeviceGetPCIBusId(text, length, device))
LOCKSTEP_CU(cuDeviceGetByPCIBusId, (CUdevice * device, const char* text),
            lockstep_host_cudaDeviceGetByPCIBusId(device, text))
LOCKSTEP_CU(cuDeviceCanAccessPeer, (int* can, CUdevice device, CUdevice peer),
            lockstep_host_cudaDeviceCanAccessPeer(can, device, peer))
LOCKSTEP_CU(cuDeviceGetP2PAttribute, (int* value, int attribute, CUdevice source, CUdevice target),
            lockstep_host_cudaDeviceGetP2PAttribute(value, static_cast<cudaDeviceP2PAttr>(attribute), source, target))

// --- contexts ---

LOCKSTEP_DRIVER CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (context == nullptr) return cudaErrorInvalidValue;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  *context = context_of(device);
  return cudaSuccess;
}
LOCKSTEP_DRIVER CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return is_device(device) ? cudaSuccess : cudaErrorInvalidDevice;
}
LOCKSTEP_DRIVER CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  if (flags == nullptr || active == nullptr) return cudaErrorInvalidValue;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  *active = 1;
  return lockstep_host_cudaGetDeviceFlags(flags);
}
LOCKSTEP_CU(cuCtxGetDevice, (CUdevice * device), lockstep_host_cudaGetDevice(device))
LOCKSTEP_CU(cuCtxSynchronize, (), lockstep_host_cudaDeviceSynchronize())
LOCKSTEP_CU(cuCtxGetStreamPriorityRange, (int* least, int* greatest),
            lockstep_host_cudaDeviceGetStreamPriorityRange(least, greatest))
LOCKSTEP_CU(cuCtxGetFlags, (unsigned int* flags), lockstep_host_cudaGetDeviceFlags(flags))
LOCKSTEP_CU(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags),
            lockstep_host_cudaDeviceEnablePeerAccess(device_of(peer), flags))
LOCKSTEP_CU(cuCtxDisablePeerAccess, (CUcontext peer), lockstep_host_cudaDeviceDisablePeerAccess(device_of(peer)))
LOCKSTEP_DRIVER CUresult cuCtxGetCurrent(CUcontext* context) {
  if (context == nullptr) return cudaErrorInvalidValue;
  *context = context_of(engine().current_device());
  return lockstep_host_sticky_error();
}
LOCKSTEP_DRIVER CUresult cuCtxSetCurrent(CUcontext context) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (context == nullptr) return cudaSuccess;
  if (!is_device(device_of(context))) return cudaErrorDeviceUninitialized;  // CUDA_ERROR_INVALID_CONTEXT
  return lockstep_host_cudaSetDevice(device_of(context));
}
LOCKSTEP_DRIVER CUresult cuCtxPushCurrent_v2(CUcontext context) {
  const int before = engine().current_device();
  if (context == nullptr) return cudaErrorDeviceUninitialized;
  if (const CUresult result = cuCtxSetCurrent(context)) return result;
  t_pushed.push_back(before);
  return cudaSuccess;
}
LOCKSTEP_DRIVER CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (t_pushed.empty()) return cudaErrorDeviceUninitialized;
  if (context != nullptr) *context = context_of(engine().current_device());
  engine().set_current_device(t_pushed.back());
  t_pushed.pop_back();
  return cudaSuccess;
}

// --- memory ---

LOCKSTEP_CU(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes), allocate(pointer, bytes))
LOCKSTEP_CU(cuMemFree_v2, (CUdeviceptr pointer), lockstep_host_cudaFree(at(pointer)))
LOCKSTEP_CU(cuMemAllocHost_v2, (void** pointer, size_t bytes), lockstep_host_cudaMallocHost(pointer, bytes))
LOCKSTEP_CU(cuMemHostAlloc, (void** pointer, size_t bytes, unsigned int flags),
            lockstep_host_cudaHostAlloc(pointer, bytes, flags))
LOCKSTEP_CU(cuMemFreeHost, (void* pointer), lockstep_host_cudaFreeHost(pointer))
LOCKSTEP_CU(cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned int flags),
            lockstep_host_cudaMallocManaged(reinterpret_cast<void**>(pointer), bytes, flags))
LOCKSTEP_CU(cuMemHostRegister_v2, (void* pointer, size_t bytes, unsigned int flags),
            lockstep_host_cudaHostRegister(pointer, bytes, flags))
LOCKSTEP_CU(cuMemHostUnregister, (void* pointer), lockstep_host_cudaHostUnregister(pointer))
LOCKSTEP_CU(cuMemHostGetDevicePointer_v2, (CUdeviceptr * device, void* pointer, unsigned int flags),
            lockstep_host_cudaHostGetDevicePointer(reinterpret_cast<void**>(device), pointer, flags))
LOCKSTEP_CU(cuMemGetInfo_v2, (size_t * available, size_t* total), lockstep_host_cudaMemGetInfo(available, total))
LOCKSTEP_CU_PTSZ(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, cudaStream_t stream),
                 lockstep_host_cudaMallocAsync(reinterpret_cast<void**>(pointer), bytes, stream))
LOCKSTEP_CU_PTSZ(cuMemFreeAsync, (CUdeviceptr pointer, cudaStream_t stream),
                 lockstep_host_cudaFreeAsync(at(pointer), stream))
LOCKSTEP_CU(cuIpcGetMemHandle, (cudaIpcMemHandle_t * handle, CUdeviceptr pointer),
            lockstep_host_cudaIpcGetMemHandle(handle, at(pointer)))
LOCKSTEP_CU(cuIpcOpenMemHandle_v2, (CUdeviceptr * pointer, cudaIpcMemHandle_t handle, unsigned int flags),
            lockstep_host_cudaIpcOpenMemHandle(reinterpret_cast<void**>(pointer), handle, flags))
LOCKSTEP_CU(cuIpcCloseMemHandle, (CUdeviceptr pointer), lockstep_host_cudaIpcCloseMemHandle(at(pointer)))
LOCKSTEP_DRIVER CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto known = known_memory(at(pointer));
  if (!known) return 500;  // CUDA_ERROR_NOT_FOUND
  if (base != nullptr) *base = known->block.begin;
  if (bytes != nullptr) *bytes = known->block.bytes;
  return cudaSuccess;
}
LOCKSTEP_DRIVER CUresult cuPointerGetAttribute(void* data, int attribute, CUdeviceptr pointer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto known = known_memory(at(pointer));
  if (data == nullptr || !known) return cudaErrorInvalidValue;
  const auto& block = known->block;
  switch (attribute) {
    case 1:  // context
      *static_cast<CUcontext*>(data) = context_of(block.device);
      return cudaSuccess;
    case 2:  // memory type: 1 host, 2 device (which managed memory counts as)
      *static_cast<unsigned*>(data) = block.memory == Memory::pinned ? 1 : 2;
      return cudaSuccess;
    case 3:  // device pointer
      *static_cast<CUdeviceptr*>(data) = pointer;
      return cudaSuccess;
    case 4:  // host pointer
      if (block.memory == Memory::device) return cudaErrorInvalidValue;
      *static_cast<void**>(data) = at(pointer);
      return cudaSuccess;
    case 6:  // synchronous memory operations
      *static_cast<int*>(data) = 0;
      return cudaSuccess;
    case 7:  // a number no other allocation has while this one lives
      *static_cast<unsigned long long*>(data) = block.begin;
      return cudaSuccess;
    case 8:  // managed
      *static_cast<int*>(data) = block.memory == Memory::managed ? 1 : 0;
      return cudaSuccess;
    case 9:  // device ordinal
      *static_cast<int*>(data) = block.device;
      return cudaSuccess;
    case 10:  // may travel in a cudaIpcMemHandle_t
      *static_cast<int*>(data) = block.memory == Memory::device ? 1 : 0;
      return cudaSuccess;
    case 11:  // where its block begins
      *static_cast<CUdeviceptr*>(data) = block.begin;
      return cudaSuccess;
    case 12:
      *static_cast<size_t*>(data) = block.bytes;
      return cudaSuccess;
    case 13:  // mapped
      *static_cast<int*>(data) = 1;
      return cudaSuccess;
    default:
      return cudaErrorNotSupported;
  }
}

// --- copies ---

#define LOCKSTEP_CU_COPY(suffix, twin_suffix, to, from, dst, src, kind)                                                \
  LOCKSTEP_CU_TWIN(cuMemcpy##suffix, cuMemcpy##suffix##_ptds, (to, from, size_t bytes),                                \
                   lockstep_host_cudaMemcpy(dst, src, bytes, kind))                                                    \
  LOCKSTEP_CU_TWIN(cuMemcpy##twin_suffix, cuMemcpy##twin_suffix##_ptsz, (to, from, size_t bytes, cudaStream_t stream), \
                   lockstep_host_cudaMemcpyAsync(dst, src, bytes, kind, stream))
LOCKSTEP_CU_COPY(, Async, CUdeviceptr to, CUdeviceptr from, at(to), at(from), cudaMemcpyDefault)
LOCKSTEP_CU_COPY(HtoD_v2, HtoDAsync_v2, CUdeviceptr to, const void* from, at(to), from, cudaMemcpyHostToDevice)
LOCKSTEP_CU_COPY(DtoH_v2, DtoHAsync_v2, void* to, CUdeviceptr from, to, at(from), cudaMemcpyDeviceToHost)
LOCKSTEP_CU_COPY(DtoD_v2, DtoDAsync_v2, CUdeviceptr to, CUdeviceptr from, at(to), at(from), cudaMemcpyDeviceToDevice)
LOCKSTEP_CU_PTDS(cuMemcpyPeer,
                 (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
                 lockstep_host_cudaMemcpyPeer(at(to), device_of(to_context), at(from), device_of(from_context), bytes))
LOCKSTEP_CU_PTSZ(cuMemcpyPeerAsync,
                 (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                  cudaStream_t stream),
                 lockstep_host_cudaMemcpyPeerAsync(at(to), device_of(to_context), at(from), device_of(from_context),
                                                   bytes, stream))
LOCKSTEP_CU_PTDS(cuMemsetD8_v2, (CUdeviceptr pointer, unsigned char value, size_t count),
                 lockstep_host_cudaMemset(at(pointer), value, count))
LOCKSTEP_CU_PTSZ(cuMemsetD8Async, (CUdeviceptr pointer, unsigned char value, size_t count, cudaStream_t stream),
                 lockstep_host_cudaMemsetAsync(at(pointer), value, count, stream))

// --- streams ---

LOCKSTEP_CU(cuStreamCreate, (cudaStream_t * stream, unsigned int flags),
            lockstep_host_cudaStreamCreateWithFlags(stream, flags))
LOCKSTEP_CU(cuStreamCreateWithPriority, (cudaStream_t * stream, unsigned int flags, int priority),
            lockstep_host_cudaStreamCreateWithPriority(stream, flags, priority))
LOCKSTEP_CU(cuStreamDestroy_v2, (cudaStream_t stream), lockstep_host_cudaStreamDestroy(stream))
LOCKSTEP_CU_PTSZ(cuStreamSynchronize, (cudaStream_t stream), lockstep_host_cudaStreamSynchronize(stream))
LOCKSTEP_CU_PTSZ(cuStreamQuery, (cudaStream_t stream), lockstep_host_cudaStreamQuery(stream))
LOCKSTEP_CU_PTSZ(cuStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
                 lockstep_host_cudaStreamWaitEvent(stream, event, flags))
LOCKSTEP_CU_PTSZ(cuStreamGetPriority, (cudaStream_t stream, int* priority),
                 lockstep_host_cudaStreamGetPriority(stream, priority))
LOCKSTEP_CU_PTSZ(cuStreamGetFlags, (cudaStream_t stream, unsigned int* flags),
                 lockstep_host_cudaStreamGetFlags(stream, flags))
LOCKSTEP_CU_PTSZ(cuStreamGetId, (cudaStream_t stream, unsigned long long* id),
                 lockstep_host_cudaStreamGetId(stream, id))
LOCKSTEP_CU_PTSZ(cuStreamGetDevice, (cudaStream_t stream, CUdevice* device),
                 lockstep_host_cudaStreamGetDevice(stream, device))
LOCKSTEP_CU_PTSZ(cuStreamAddCallback,
                 (cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned int flags),
                 lockstep_host_cudaStreamAddCallback(stream, callback, data, flags))
LOCKSTEP_CU_PTSZ(cuLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void* data),
                 lockstep_host_cudaLaunchHostFunc(stream, function, data))
static CUresult stream_context(cudaStream_t stream, CUcontext* context) {
  if (context == nullptr) return cudaErrorInvalidValue;
  int device = 0;
  if (const cudaError_t e = lockstep_host_cudaStreamGetDevice(stream, &device)) return e;
  *context = context_of(device);
  return cudaSuccess;
}
LOCKSTEP_CU_PTSZ(cuStreamGetCtx, (cudaStream_t stream, CUcontext* context), stream_context(stream, context))

// --- events ---

LOCKSTEP_CU(cuEventCreate, (cudaEvent_t * event, unsigned int flags),
            lockstep_host_cudaEventCreateWithFlags(event, flags))
LOCKSTEP_CU_PTSZ(cuEventRecord, (cudaEvent_t event, cudaStream_t stream), lockstep_host_cudaEventRecord(event, stream))
LOCKSTEP_CU_PTSZ(cuEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned int flags),
                 lockstep_host_cudaEventRecordWithFlags(event, stream, flags))
LOCKSTEP_CU(cuEventQuery, (cudaEvent_t event), lockstep_host_cudaEventQuery(event))
LOCKSTEP_CU(cuEventSynchronize, (cudaEvent_t event), lockstep_host_cudaEventSynchronize(event))
LOCKSTEP_CU(cuEventDestroy_v2, (cudaEvent_t event), lockstep_host_cudaEventDestroy(event))
LOCKSTEP_CU(cuEventDestroy, (cudaEvent_t event), lockstep_host_cudaEventDestroy(event))
LOCKSTEP_CU(cuEventElapsedTime, (float* ms, cudaEvent_t start, cudaEvent_t end),
            lockstep_host_cudaEventElapsedTime(ms, start, end))
LOCKSTEP_CU(cuEventElapsedTime_v2, (float* ms, cudaEvent_t start, cudaEvent_t end),
            lockstep_host_cudaEventElapsedTime(ms, start, end))

// --- capture and graphs ---

LOCKSTEP_CU_PTSZ(cuStreamBeginCapture_v2, (cudaStream_t stream, int mode),
                 lockstep_host_cudaStreamBeginCapture(stream, static_cast<cudaStreamCaptureMode>(mode)))
LOCKSTEP_CU_PTSZ(cuStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph),
                 lockstep_host_cudaStreamEndCapture(stream, graph))
LOCKSTEP_CU_PTSZ(cuStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus* status),
                 lockstep_host_cudaStreamIsCapturing(stream, status))
LOCKSTEP_CU_PTSZ(cuStreamGetCaptureInfo, (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id),
                 lockstep_host_cudaStreamGetCaptureInfo(stream, status, id, nullptr, nullptr, nullptr, nullptr))
LOCKSTEP_CU_PTSZ(cuStreamGetCaptureInfo_v2,
                 (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                  const cudaGraphNode_t** tail, size_t* count),
                 lockstep_host_cudaStreamGetCaptureInfo(stream, status, id, graph, tail, nullptr, count))
LOCKSTEP_CU_PTSZ(cuStreamGetCaptureInfo_v3,
                 (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                  const cudaGraphNode_t** tail, const cudaGraphEdgeData** data, size_t* count),
                 lockstep_host_cudaStreamGetCaptureInfo(stream, status, id, graph, tail, data, count))
LOCKSTEP_CU(cuThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode * mode),
            lockstep_host_cudaThreadExchangeStreamCaptureMode(mode))
LOCKSTEP_CU(cuGraphCreate, (cudaGraph_t * graph, unsigned int flags), lockstep_host_cudaGraphCreate(graph, flags))
LOCKSTEP_CU(cuGraphDestroy, (cudaGraph_t graph), lockstep_host_cudaGraphDestroy(graph))
LOCKSTEP_CU(cuGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count),
            lockstep_host_cudaGraphGetNodes(graph, nodes, count))
LOCKSTEP_CU(cuGraphInstantiateWithFlags, (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
            lockstep_host_cudaGraphInstantiateWithFlags(exec, graph, flags))
LOCKSTEP_CU(cuGraphExecDestroy, (cudaGraphExec_t exec), lockstep_host_cudaGraphExecDestroy(exec))
LOCKSTEP_CU_PTSZ(cuGraphUpload, (cudaGraphExec_t exec, cudaStream_t stream),
                 lockstep_host_cudaGraphUpload(exec, stream))
LOCKSTEP_CU_PTSZ(cuGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream),
                 lockstep_host_cudaGraphLaunch(exec, stream))

// --- device code ---

// The arguments do not matter; they stay where the caller put them.
LOCKSTEP_CU(cuModuleLoad, (), lockstep_host_refuse_kernel("cuModuleLoad"))
LOCKSTEP_CU(cuModuleLoadData, (), lockstep_host_refuse_kernel("cuModuleLoadData"))
LOCKSTEP_CU(cuModuleLoadDataEx, (), lockstep_host_refuse_kernel("cuModuleLoadDataEx"))
LOCKSTEP_CU(cuLibraryLoadData, (), lockstep_host_refuse_kernel("cuLibraryLoadData"))
LOCKSTEP_CU_PTSZ(cuLaunchKernel, (), lockstep_host_refuse_kernel("cuLaunchKernel"))
LOCKSTEP_CU_PTSZ(cuLaunchKernelEx, (), lockstep_host_refuse_kernel("cuLaunchKernelEx"))

// --- errors ---

LOCKSTEP_DRIVER CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return cudaErrorInvalidValue;
  switch (error) {
#define LOCKSTEP_CUDA_ERROR(number, name, message) \
  case number:                                     \
    *text = message;                               \
    return cudaSuccess;
#include "cuda_errors.def"
    default:
      *text = nullptr;
      return cudaErrorInvalidValue;
  }
}
LOCKSTEP_DRIVER CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return cudaErrorInvalidValue;
  switch (error) {
#define LOCKSTEP_DRIVER_ERROR(number, driver_name) \
  case number:                                     \
    *name = #driver_name;                          \
    return cudaSuccess;
#include "reference/cuda/driver_errors.def"
    default:
      *name = nullptr;
      return cudaErrorInvalidValue;
  }
}

// --- finding all these ---

namespace {

enum : int { kFound = 0, kNotFound = 1, kTooNew = 2 };

// Functions whose later versions take other arguments: which one a program means by the plain name.
struct Version {
  const char* name;
  int since;
  const char* exported;
};
constexpr Version kVersions[] = {
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCaptureInfo", 10010, "cuStreamGetCaptureInfo"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"},
};

void* exported(const std::string& name, bool per_thread) {
  static void* const self = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&cuInit), &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  if (self == nullptr) return nullptr;
  if (per_thread)
    for (const char* suffix : {"_ptsz", "_ptds"})
      if (void* const function = dlsym(self, (name + suffix).c_str())) return function;
  return dlsym(self, name.c_str());
}

int find_function(const char* symbol, int version, bool per_thread, void** function) {
  bool too_new = false;
  for (const Version& one : kVersions) {
    if (std::strcmp(one.name, symbol) != 0) continue;
    if (version >= one.since) {
      *function = exported(one.exported, per_thread);
      return kFound;
    }
    too_new = true;
  }
  if (too_new) return kTooNew;
  for (const char* suffix : {"_v3", "_v2", ""})
    if ((*function = exported(std::string(symbol) + suffix, per_thread)) != nullptr) return kFound;
  return kNotFound;
}

// Nobody but NVIDIA's own CUDA runtime asks for these tables, and it does so first of all. Without them it gives up
// with "API call is not supported in the installed CUDA driver", which sends its user the wrong way.
void explain_other_runtime(const char* symbol) {
  static std::atomic<bool> said{false};
  if (symbol == nullptr || std::strcmp(symbol, "cuGetExportTable") != 0 || said.exchange(true)) return;
  std::fprintf(stderr,
               "lockstep host runtime: a CUDA runtime other than the host runtime's is in this process (linked in "
               "statically, or found by an RPATH) and cannot work on it; relink with -cudart shared and without the "
               "RPATH, or preload the host runtime's three libraries\n");
}

constexpr unsigned long long kPerThreadFlag = 2;

CUresult get_function(const char* symbol, void** function, int version, unsigned long long flags, int* status) {
  if (symbol == nullptr || *symbol == '\0' || function == nullptr || flags > kPerThreadFlag)
    return cudaErrorInvalidValue;
  *function = nullptr;
  const int found = std::strncmp(symbol, "cu", 2) == 0
                        ? find_function(symbol, version, flags == kPerThreadFlag, function)
                        : static_cast<int>(kNotFound);
  if (status != nullptr) *status = found;
  return cudaSuccess;
}

}  // namespace

LOCKSTEP_DRIVER CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags,
                                             int* status) {
  explain_other_runtime(symbol);
  int found = kFound;
  const CUresult result = get_function(symbol, function, version, flags, &found);
  if (status != nullptr && result == cudaSuccess) *status = found;
  return result == cudaSuccess && found != kFound ? 500 : result;  // CUDA_ERROR_NOT_FOUND
}
LOCKSTEP_DRIVER CUresult cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

cudaError_t lockstep_host_cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                                           unsigned long long flags,
                                                           cudaDriverEntryPointQueryResult* status) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  // The default follows how the program was compiled, which its choice of twin tells.
  const bool null_is_per_thread = engine().null_is_per_thread(false);
  engine().null_is_per_thread(null_is_per_thread);
  if (flags == cudaEnableDefault && null_is_per_thread) flags = kPerThreadFlag;
  int found = kFound;
  const CUresult result = get_function(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return static_cast<cudaError_t>(result);
}
cudaError_t lockstep_host_cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                                  cudaDriverEntryPointQueryResult* status) {
  return lockstep_host_cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}
