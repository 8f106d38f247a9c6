// SPDX-License-Identifier: MIT
//
// The driver's own interface (cu*), as far as host-side tools ask for it: events on anybody's stream, stream queries,
// versions, error texts. CUresult and cudaError_t share their numbers for all of these.

#include <cstdint>

#include "cuda_runtime_api.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/runtime.h"

#define LOCKSTEP_DRIVER extern "C" __attribute__((visibility("default")))

using CUresult = int;
using CUdevice = int;

LOCKSTEP_DRIVER CUresult cuInit(unsigned int flags) {
  return flags != 0 ? cudaErrorInvalidValue : lockstep_host_sticky_error();
}
LOCKSTEP_DRIVER CUresult cuDriverGetVersion(int* version) { return lockstep_host_cudaDriverGetVersion(version); }
LOCKSTEP_DRIVER CUresult cuDeviceGetCount(int* count) { return lockstep_host_cudaGetDeviceCount(count); }
LOCKSTEP_DRIVER CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) return cudaErrorInvalidValue;
  if (ordinal < 0 || ordinal >= lockstep::host::engine().device_count()) return cudaErrorInvalidDevice;
  *device = ordinal;
  return cudaSuccess;
}
LOCKSTEP_DRIVER CUresult cuCtxGetDevice(CUdevice* device) { return lockstep_host_cudaGetDevice(device); }
LOCKSTEP_DRIVER CUresult cuCtxSynchronize() { return lockstep_host_cudaDeviceSynchronize(); }

// There is one context a device, and nothing in it but the device's number (plus one, so that it is not null).
LOCKSTEP_DRIVER CUresult cuCtxGetCurrent(void** context) {
  if (context == nullptr) return cudaErrorInvalidValue;
  *context = reinterpret_cast<void*>(static_cast<uintptr_t>(lockstep::host::engine().current_device()) + 1);
  return lockstep_host_sticky_error();
}
LOCKSTEP_DRIVER CUresult cuCtxSetCurrent(void* context) {
  if (context == nullptr) return lockstep_host_sticky_error();
  return lockstep_host_cudaSetDevice(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1);
}

LOCKSTEP_DRIVER CUresult cuEventCreate(cudaEvent_t* event, unsigned int flags) {
  return lockstep_host_cudaEventCreateWithFlags(event, flags);
}
LOCKSTEP_DRIVER CUresult cuEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return lockstep_host_cudaEventRecord(event, stream);
}
LOCKSTEP_DRIVER CUresult cuEventQuery(cudaEvent_t event) { return lockstep_host_cudaEventQuery(event); }
LOCKSTEP_DRIVER CUresult cuEventSynchronize(cudaEvent_t event) { return lockstep_host_cudaEventSynchronize(event); }
LOCKSTEP_DRIVER CUresult cuEventDestroy_v2(cudaEvent_t event) { return lockstep_host_cudaEventDestroy(event); }
LOCKSTEP_DRIVER CUresult cuEventDestroy(cudaEvent_t event) { return lockstep_host_cudaEventDestroy(event); }
LOCKSTEP_DRIVER CUresult cuEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return lockstep_host_cudaEventElapsedTime(ms, start, end);
}

LOCKSTEP_DRIVER CUresult cuStreamCreate(cudaStream_t* stream, unsigned int flags) {
  return lockstep_host_cudaStreamCreateWithFlags(stream, flags);
}
LOCKSTEP_DRIVER CUresult cuStreamDestroy_v2(cudaStream_t stream) { return lockstep_host_cudaStreamDestroy(stream); }
LOCKSTEP_DRIVER CUresult cuStreamSynchronize(cudaStream_t stream) {
  return lockstep_host_cudaStreamSynchronize(stream);
}
LOCKSTEP_DRIVER CUresult cuStreamQuery(cudaStream_t stream) { return lockstep_host_cudaStreamQuery(stream); }
LOCKSTEP_DRIVER CUresult cuStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return lockstep_host_cudaStreamWaitEvent(stream, event, flags);
}
// There is no stream capture here, so no stream is ever being captured.
LOCKSTEP_DRIVER CUresult cuStreamIsCapturing(cudaStream_t stream, int* status) {
  if (status == nullptr) return cudaErrorInvalidValue;
  *status = 0;
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  auto& engine = lockstep::host::engine();
  return engine.stream(stream, engine.current_device()) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
LOCKSTEP_DRIVER CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int current = 0;
  if (mode == nullptr || *mode < 0 || *mode > 2) return cudaErrorInvalidValue;
  const int before = current;
  current = *mode;
  *mode = before;
  return cudaSuccess;
}

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
