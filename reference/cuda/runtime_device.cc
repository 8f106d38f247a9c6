// SPDX-License-Identifier: MIT
//
// Devices: there are as many as LOCKSTEP_HOST_DEVICES says, all alike, and any number of ranks may share one.

#include <atomic>
#include <cstdio>
#include <cstring>

#include "reference/cuda/engine.h"
#include "reference/cuda/runtime.h"

using lockstep::host::engine;

namespace {
std::atomic<cudaError_t> g_sticky{cudaSuccess};
}

cudaError_t lockstep_host_sticky_error() {
  if (const cudaError_t e = engine().ready()) return e;
  return g_sticky.load(std::memory_order_relaxed);
}

cudaError_t lockstep_host_refuse_kernel(const char* how) {
  if (g_sticky.exchange(cudaErrorNotSupported) == cudaSuccess)
    std::fprintf(
        stderr,
        "lockstep host runtime: %s: there is no device to run kernels on; this and every later CUDA call of the "
        "process fails (cudaErrorNotSupported)\n",
        how);
  return cudaErrorNotSupported;
}

cudaError_t lockstep_host_cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaDriverGetVersion(int* version) { return lockstep_host_cudaRuntimeGetVersion(version); }

cudaError_t lockstep_host_cudaGetDeviceCount(int* count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (count == nullptr) return cudaErrorInvalidValue;
  *count = engine().device_count();
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaSetDevice(int device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (device < 0 || device >= engine().device_count()) return cudaErrorInvalidDevice;
  engine().set_current_device(device);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaGetDevice(int* device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (device == nullptr) return cudaErrorInvalidValue;
  *device = engine().current_device();
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (prop == nullptr) return cudaErrorInvalidValue;
  if (device < 0 || device >= engine().device_count()) return cudaErrorInvalidDevice;
  size_t available = 0;
  size_t total = 0;
  if (const cudaError_t e = lockstep_host_cudaMemGetInfo(&available, &total)) return e;
  std::memset(prop, 0, sizeof *prop);
  std::snprintf(prop->name, sizeof prop->name, "Lockstep host device");
  std::memcpy(prop->uuid, &device, sizeof device);
  prop->totalGlobalMem = total;
  prop->warpSize = 32;
  prop->maxThreadsPerBlock = 1024;
  prop->major = 9;
  prop->multiProcessorCount = 1;
  prop->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaDeviceSynchronize() {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  engine().wait_device(engine().current_device());
  return lockstep_host_sticky_error();
}
