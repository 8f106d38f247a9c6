// SPDX-License-Identifier: MIT
//
// See pool.h.

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "reference/cuda/capture.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/pool.h"
#include "reference/cuda/registered.h"
#include "reference/cuda/resolve.h"
#include "reference/cuda/runtime.h"

using namespace lockstep::host;

namespace {

struct Pool {
  int device = 0;
  uint64_t threshold = 0;
  uint64_t used = 0;
  uint64_t high = 0;
  int reuse[3] = {1, 1, 1};
  std::map<int, cudaMemAccessFlags> access;  // by device, where it was set
};
struct Pools {
  std::mutex mutex;
  std::set<std::shared_ptr<Pool>> all;
  std::map<int, std::shared_ptr<Pool>> defaults;  // by device
  std::map<int, std::shared_ptr<Pool>> current;   // where another one was set
  std::unordered_map<void*, std::pair<std::shared_ptr<Pool>, size_t>> blocks;
};
Pools& pools() {
  static Pools* const the_one = new Pools;  // never destroyed; see engine.h
  return *the_one;
}

cudaMemPool_t handle_of(const std::shared_ptr<Pool>& pool) { return reinterpret_cast<cudaMemPool_t>(pool.get()); }

// All of these with the lock held.
std::shared_ptr<Pool> find(cudaMemPool_t handle) {
  for (const auto& pool : pools().all)
    if (handle_of(pool) == handle) return pool;
  return nullptr;
}
std::shared_ptr<Pool> default_of(int device) {
  auto& pool = pools().defaults[device];
  if (!pool) {
    pool = std::make_shared<Pool>();
    pool->device = device;
    pools().all.insert(pool);
  }
  return pool;
}
std::shared_ptr<Pool> current_of(int device) {
  const auto set = pools().current.find(device);
  return set == pools().current.end() ? default_of(device) : set->second;
}

bool is_device(int device) { return device >= 0 && device < engine().device_count(); }

class FreeOp final : public Op {
 public:
  explicit FreeOp(void* pointer) : pointer_(pointer) {}
  Step step() override {
    forget_pooled(pointer_);
    engine().free(pointer_);
    return Step::done;
  }

 private:
  void* const pointer_;
};

// Captured, the memory is the graph's: it is there until the graph and what was made of it are gone.
cudaError_t allocate(void** pointer, size_t bytes, const std::shared_ptr<Pool>& pool,
                     const std::shared_ptr<Stream>& stream) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* block = nullptr;
  bool captured = false;
  const auto node = [&] {  // unless it becomes one, the task gives its memory back
    block = engine().allocate(bytes, Memory::device, pool->device);
    return Task{cudaGraphNodeTypeMemAlloc, std::make_shared<GraphMemory>(block)};
  };
  if (const cudaError_t e = capture(stream, node, captured)) return e;
  if (!captured) block = engine().allocate(bytes, Memory::device, pool->device);
  if (block == nullptr) return cudaErrorMemoryAllocation;
  *pointer = block;
  if (captured) return cudaSuccess;
  const std::lock_guard lock(pools().mutex);
  pools().blocks[block] = {pool, bytes};
  pool->used += bytes;
  pool->high = std::max(pool->high, pool->used);
  return cudaSuccess;
}

}  // namespace

namespace lockstep::host {

void forget_pooled(void* pointer) {
  const std::lock_guard lock(pools().mutex);
  const auto block = pools().blocks.find(pointer);
  if (block == pools().blocks.end()) return;
  block->second.first->used -= block->second.second;
  pools().blocks.erase(block);
}

}  // namespace lockstep::host

cudaError_t lockstep_host_cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  std::shared_ptr<Pool> pool;
  {
    const std::lock_guard lock(pools().mutex);
    pool = current_of(stream->device);
  }
  return allocate(pointer, bytes, pool, stream);
}
cudaError_t lockstep_host_cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool_handle,
                                                  cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  std::shared_ptr<Pool> pool;
  {
    const std::lock_guard lock(pools().mutex);
    pool = find(pool_handle);
  }
  return pool ? allocate(pointer, bytes, pool, stream) : cudaErrorInvalidValue;
}
cudaError_t lockstep_host_cudaFreeAsync(void* pointer, cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (pointer == nullptr) return cudaSuccess;
  if (!engine().heap_offset(pointer) || memory_of(pointer) != Memory::device) return cudaErrorInvalidValue;
  const bool of_graph = is_graph_memory(pointer);
  bool captured = false;
  const auto node = [&] { return Task{cudaGraphNodeTypeMemFree, {}}; };
  if (const cudaError_t e = capture(stream, node, captured)) return e;
  if (of_graph) return cudaSuccess;  // it goes with its graph
  if (captured) return cudaErrorInvalidValue;
  engine().submit(stream, std::make_unique<FreeOp>(pointer), {});
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaMemPoolCreate(cudaMemPool_t* out, const cudaMemPoolProps* props) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (out == nullptr || props == nullptr || props->allocType != cudaMemAllocationTypePinned)
    return cudaErrorInvalidValue;
  if (props->location.type != cudaMemLocationTypeDevice || props->handleTypes != cudaMemHandleTypeNone)
    return lockstep_host_refuse_function("a memory pool on the host or to be shared with other processes");
  if (!is_device(props->location.id)) return cudaErrorInvalidDevice;
  auto pool = std::make_shared<Pool>();
  pool->device = props->location.id;
  *out = handle_of(pool);
  const std::lock_guard lock(pools().mutex);
  pools().all.insert(std::move(pool));
  return cudaSuccess;
}
// Memory that came from it stays until it is freed.
cudaError_t lockstep_host_cudaMemPoolDestroy(cudaMemPool_t handle) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const std::lock_guard lock(pools().mutex);
  const auto pool = find(handle);
  if (!pool || pools().defaults[pool->device] == pool) return cudaErrorInvalidValue;
  std::erase_if(pools().current, [&](const auto& entry) { return entry.second == pool; });
  pools().all.erase(pool);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaMemPoolTrimTo(cudaMemPool_t handle, size_t) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const std::lock_guard lock(pools().mutex);
  return find(handle) ? cudaSuccess : cudaErrorInvalidValue;  // freed memory is given back anyway
}

cudaError_t lockstep_host_cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const std::lock_guard lock(pools().mutex);
  const auto pool = find(handle);
  if (!pool || value == nullptr) return cudaErrorInvalidValue;
  if (attribute >= cudaMemPoolReuseFollowEventDependencies && attribute <= cudaMemPoolReuseAllowInternalDependencies)
    pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies] = *static_cast<int*>(value);
  else if (attribute == cudaMemPoolAttrReleaseThreshold)
    pool->threshold = *static_cast<uint64_t*>(value);
  else if ((attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh) &&
           *static_cast<uint64_t*>(value) == 0)
    pool->high = pool->used;
  else
    return cudaErrorInvalidValue;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const std::lock_guard lock(pools().mutex);
  const auto pool = find(handle);
  if (!pool || value == nullptr) return cudaErrorInvalidValue;
  if (attribute >= cudaMemPoolReuseFollowEventDependencies && attribute <= cudaMemPoolReuseAllowInternalDependencies)
    *static_cast<int*>(value) = pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies];
  else if (attribute == cudaMemPoolAttrReleaseThreshold)
    *static_cast<uint64_t*>(value) = pool->threshold;
  else if (attribute == cudaMemPoolAttrReservedMemCurrent || attribute == cudaMemPoolAttrUsedMemCurrent)
    *static_cast<uint64_t*>(value) = pool->used;
  else if (attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh)
    *static_cast<uint64_t*>(value) = pool->high;
  else
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

// Kept, so that it reads back: every device reaches everything here.
cudaError_t lockstep_host_cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* descriptions,
                                               size_t count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const std::lock_guard lock(pools().mutex);
  const auto pool = find(handle);
  if (!pool || (descriptions == nullptr && count > 0)) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    const cudaMemAccessDesc& one = descriptions[i];
    if (one.location.type != cudaMemLocationTypeDevice || !is_device(one.location.id)) return cudaErrorInvalidDevice;
    pool->access[one.location.id] = one.flags;
  }
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle,
                                               cudaMemLocation* location) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const std::lock_guard lock(pools().mutex);
  const auto pool = find(handle);
  if (!pool || flags == nullptr || location == nullptr) return cudaErrorInvalidValue;
  const auto set = pool->access.find(location->id);
  *flags = cudaMemAccessFlagsProtNone;
  if (location->id == pool->device) *flags = cudaMemAccessFlagsProtReadWrite;
  if (set != pool->access.end()) *flags = set->second;
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaDeviceGetDefaultMemPool(cudaMemPool_t* out, int device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (out == nullptr) return cudaErrorInvalidValue;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  const std::lock_guard lock(pools().mutex);
  *out = handle_of(default_of(device));
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaDeviceGetMemPool(cudaMemPool_t* out, int device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (out == nullptr) return cudaErrorInvalidValue;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  const std::lock_guard lock(pools().mutex);
  *out = handle_of(current_of(device));
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaDeviceSetMemPool(int device, cudaMemPool_t handle) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (!is_device(device)) return cudaErrorInvalidDevice;
  const std::lock_guard lock(pools().mutex);
  const auto pool = find(handle);
  if (!pool || pool->device != device) return cudaErrorInvalidValue;
  pools().current[device] = pool;
  return cudaSuccess;
}

static bool is_device_memory(const cudaMemLocation* location, cudaMemAllocationType type) {
  return location != nullptr && location->type == cudaMemLocationTypeDevice && type == cudaMemAllocationTypePinned;
}
cudaError_t lockstep_host_cudaMemGetDefaultMemPool(cudaMemPool_t* out, cudaMemLocation* location,
                                                   cudaMemAllocationType type) {
  return is_device_memory(location, type) ? lockstep_host_cudaDeviceGetDefaultMemPool(out, location->id)
                                          : cudaErrorNotSupported;
}
cudaError_t lockstep_host_cudaMemGetMemPool(cudaMemPool_t* out, cudaMemLocation* location, cudaMemAllocationType type) {
  return is_device_memory(location, type) ? lockstep_host_cudaDeviceGetMemPool(out, location->id)
                                          : cudaErrorNotSupported;
}
cudaError_t lockstep_host_cudaMemSetMemPool(cudaMemLocation* location, cudaMemAllocationType type, cudaMemPool_t pool) {
  return is_device_memory(location, type) ? lockstep_host_cudaDeviceSetMemPool(location->id, pool)
                                          : cudaErrorNotSupported;
}
