// SPDX-License-Identifier: MIT
//
// Devices: there are as many as LOCKSTEP_HOST_DEVICES says, all alike, and any number of ranks may share one.

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "reference/cuda/capture.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/runtime.h"

using lockstep::host::engine;

namespace {

std::atomic<cudaError_t> g_sticky{cudaSuccess};
std::atomic<bool> g_refused{false};

bool is_device(int device) { return device >= 0 && device < engine().device_count(); }

}  // namespace

bool lockstep_host_null_is_per_thread(bool yes) { return engine().null_is_per_thread(yes); }

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

void lockstep_host_illegal_address(const char* what) {
  if (g_sticky.exchange(cudaErrorIllegalAddress) == cudaSuccess)
    std::fprintf(
        stderr,
        "lockstep host runtime: %s is not memory of this process; this and every later CUDA call of the process "
        "fails (cudaErrorIllegalAddress)\n",
        what);
}

cudaError_t lockstep_host_refuse_function(const char* name) {
  static std::mutex mutex;
  static std::set<std::string>* const told = new std::set<std::string>;
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  g_refused.store(true);
  const std::lock_guard lock(mutex);
  if (told->insert(name).second)
    std::fprintf(stderr,
                 "lockstep host runtime: %s is not there: it fails, and cudaGetLastError says cudaErrorNotSupported "
                 "from now on\n",
                 name);
  return cudaErrorNotSupported;
}
cudaError_t lockstep_host_refused() {
  return g_refused.load(std::memory_order_relaxed) ? cudaErrorNotSupported : cudaSuccess;
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
  if (!is_device(device)) return cudaErrorInvalidDevice;
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
  if (!is_device(device)) return cudaErrorInvalidDevice;
  size_t available = 0;
  size_t total = 0;
  if (const cudaError_t e = lockstep_host_cudaMemGetInfo(&available, &total)) return e;
  std::memset(prop, 0, sizeof *prop);
  std::snprintf(prop->name, sizeof prop->name, "Lockstep host device");
  std::memcpy(prop->uuid, &device, sizeof device);
  prop->totalGlobalMem = total;
  prop->warpSize = 32;
  prop->maxThreadsPerBlock = 1024;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
  prop->maxThreadsDim[2] = 64;
  prop->maxGridSize[0] = 0x7fffffff;
  prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
  prop->sharedMemPerBlock = 48 << 10;
  prop->regsPerBlock = 65536;
  prop->memPitch = 0x7fffffff;
  prop->major = 9;
  prop->multiProcessorCount = 1;
  prop->integrated = 1;  // its memory is the host's
  prop->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaDeviceSynchronize() {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (const cudaError_t e = lockstep::host::check_device_not_captured(engine().current_device())) return e;
  if (const cudaError_t e = lockstep::host::check_allowed()) return e;
  engine().wait_device(engine().current_device());
  return lockstep_host_sticky_error();
}
// There is nothing on a device to take back but memory, which may be in other processes' hands.
cudaError_t lockstep_host_cudaDeviceReset() { return lockstep_host_cudaDeviceSynchronize(); }

cudaError_t lockstep_host_cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const int number = attribute;
  if (value == nullptr || number <= 0 || number > 255) return cudaErrorInvalidValue;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  switch (number) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *value = 1024;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = 64;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = 0x7fffffff;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = 65535;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 48 << 10;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
      *value = 1000000;
      break;
    case cudaDevAttrPciBusId:
      *value = device + 1;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrMultiProcessorCount:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrAsyncEngineCount:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrIntegrated:
      *value = 1;
      break;
    default:  // what a device without kernels, textures and links has not
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaChooseDevice(int* device, const cudaDeviceProp* prop) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (device == nullptr || prop == nullptr) return cudaErrorInvalidValue;
  *device = 0;  // all are alike
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaInitDevice(int device, unsigned int, unsigned int) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return is_device(device) ? cudaSuccess : cudaErrorInvalidDevice;
}

// How threads wait is ours to choose; the flags are kept for who asks.
static std::atomic<unsigned> g_device_flags{cudaDeviceScheduleAuto};
cudaError_t lockstep_host_cudaSetDeviceFlags(unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if ((flags & ~static_cast<unsigned>(cudaDeviceMask)) != 0) return cudaErrorInvalidValue;
  g_device_flags = flags;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaGetDeviceFlags(unsigned int* flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (flags == nullptr) return cudaErrorInvalidValue;
  *flags = g_device_flags | cudaDeviceMapHost;
  return cudaSuccess;
}

// Device d is the only one on bus d + 1; the domain carries what a bus number cannot.
cudaError_t lockstep_host_cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (text == nullptr || length < 13) return cudaErrorInvalidValue;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  std::snprintf(text, static_cast<size_t>(length), "%04x:%02x:00.0", static_cast<unsigned>(device + 1) >> 8,
                static_cast<unsigned>(device + 1) & 0xff);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaDeviceGetByPCIBusId(int* device, const char* text) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (device == nullptr || text == nullptr) return cudaErrorInvalidValue;
  unsigned domain = 0;
  unsigned bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2) return cudaErrorInvalidValue;
  const int found = static_cast<int>((domain << 8 | bus) - 1);
  if (!is_device(found)) return cudaErrorInvalidDevice;
  *device = found;
  return cudaSuccess;
}

// --- peers: every device reaches every other, but a program must ask for it once, as on a GPU ---

namespace {

std::mutex g_peers_mutex;
std::set<std::pair<int, int>>& peers_enabled() {
  static auto* const pairs = new std::set<std::pair<int, int>>;
  return *pairs;
}

}  // namespace

cudaError_t lockstep_host_cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (can == nullptr) return cudaErrorInvalidValue;
  if (!is_device(device) || !is_device(peer)) return cudaErrorInvalidDevice;
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (flags != 0) return cudaErrorInvalidValue;
  if (!is_device(peer) || peer == engine().current_device()) return cudaErrorInvalidDevice;
  const std::lock_guard lock(g_peers_mutex);
  return peers_enabled().emplace(engine().current_device(), peer).second ? cudaSuccess
                                                                         : cudaErrorPeerAccessAlreadyEnabled;
}
cudaError_t lockstep_host_cudaDeviceDisablePeerAccess(int peer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (!is_device(peer)) return cudaErrorInvalidDevice;
  const std::lock_guard lock(g_peers_mutex);
  return peers_enabled().erase({engine().current_device(), peer}) != 0 ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
}
cudaError_t lockstep_host_cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int source, int target) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (value == nullptr || attribute < cudaDevP2PAttrPerformanceRank) return cudaErrorInvalidValue;
  if (!is_device(source) || !is_device(target) || source == target) return cudaErrorInvalidDevice;
  *value = attribute == cudaDevP2PAttrAccessSupported || attribute == cudaDevP2PAttrNativeAtomicSupported ? 1 : 0;
  return cudaSuccess;
}

// --- settings that only kernels would feel: kept, so that they read back ---

namespace {

constexpr int kLimits = cudaLimitPersistingL2CacheSize + 1;
std::atomic<size_t> g_limits[kLimits] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};
std::atomic<int> g_cache_config{cudaFuncCachePreferNone};

}  // namespace

cudaError_t lockstep_host_cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (value == nullptr) return cudaErrorInvalidValue;
  if (limit < 0 || limit >= kLimits) return cudaErrorUnsupportedLimit;
  *value = g_limits[limit];
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (limit < 0 || limit >= kLimits) return cudaErrorUnsupportedLimit;
  g_limits[limit] = value;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (config == nullptr) return cudaErrorInvalidValue;
  *config = static_cast<cudaFuncCache>(g_cache_config.load());
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaDeviceSetCacheConfig(cudaFuncCache config) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (config < cudaFuncCachePreferNone || config > cudaFuncCachePreferEqual) return cudaErrorInvalidValue;
  g_cache_config = config;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaCtxResetPersistingL2Cache() { return lockstep_host_sticky_error(); }
cudaError_t lockstep_host_cudaProfilerStart() { return lockstep_host_sticky_error(); }
cudaError_t lockstep_host_cudaProfilerStop() { return lockstep_host_sticky_error(); }

// --- kernels: programs may ask about them before they launch them, which fails ---

cudaError_t lockstep_host_cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (attributes == nullptr) return cudaErrorInvalidValue;
  if (function == nullptr) return cudaErrorInvalidDeviceFunction;
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 48 << 10;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return function == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}
cudaError_t lockstep_host_cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return function == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}
cudaError_t lockstep_host_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                                 int block_size, size_t, unsigned int) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (blocks == nullptr || block_size <= 0) return cudaErrorInvalidValue;
  if (function == nullptr) return cudaErrorInvalidDeviceFunction;
  *blocks = block_size <= 1024 ? 1 : 0;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                                        int block_size, size_t shared_bytes) {
  return lockstep_host_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                              shared_bytes, 0);
}
