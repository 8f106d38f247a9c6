// SPDX-License-Identifier: MIT
//
// Allocating, freeing, registering, and what a pointer points to. Copies are in runtime_copy.cc, pools in
// runtime_pool.cc.

#include "reference/cuda/capture.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/pool.h"
#include "reference/cuda/registered.h"
#include "reference/cuda/resolve.h"
#include "reference/cuda/runtime.h"

using namespace lockstep::host;

namespace {

constexpr size_t kRowAlignment = 512;  // cudaMallocPitch's

cudaError_t allocate(void** pointer, size_t bytes, Memory memory) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (pointer == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t e = check_allowed()) return e;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = engine().allocate(bytes, memory, engine().current_device());
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// Frees wait until the device is done with the memory, as cudaFree does.
cudaError_t release(void* pointer, bool want_device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (pointer == nullptr) return cudaSuccess;
  if (const cudaError_t e = check_allowed()) return e;
  const auto known = known_memory(pointer);
  if (!known || known->registered || !engine().heap_offset(pointer)) return cudaErrorInvalidValue;
  const bool is_device = known->block.memory != Memory::pinned;
  if (is_device != want_device || known->block.begin != reinterpret_cast<uintptr_t>(pointer))
    return cudaErrorInvalidValue;
  if (is_graph_memory(pointer)) return cudaSuccess;  // it goes with its graph
  engine().wait_device(known->block.device);
  forget_pooled(pointer);
  return engine().free(pointer) ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t lockstep_host_cudaMalloc(void** pointer, size_t bytes) { return allocate(pointer, bytes, Memory::device); }
cudaError_t lockstep_host_cudaMallocHost(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, Memory::pinned);
}
cudaError_t lockstep_host_cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  constexpr unsigned int known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if ((flags & ~known) != 0) return cudaErrorInvalidValue;
  return allocate(pointer, bytes, Memory::pinned);
}
cudaError_t lockstep_host_cudaMallocManaged(void** pointer, size_t bytes, unsigned int flags) {
  if (bytes == 0 || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)) return cudaErrorInvalidValue;
  return allocate(pointer, bytes, Memory::managed);
}
cudaError_t lockstep_host_cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  if (pitch == nullptr) return cudaErrorInvalidValue;
  *pitch = (width + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  return allocate(pointer, *pitch * height, Memory::device);
}
cudaError_t lockstep_host_cudaMalloc3D(cudaPitchedPtr* at, cudaExtent extent) {
  if (at == nullptr) return cudaErrorInvalidValue;
  at->xsize = extent.width;
  at->ysize = extent.height;
  return lockstep_host_cudaMallocPitch(&at->ptr, &at->pitch, extent.width, extent.height * extent.depth);
}
cudaError_t lockstep_host_cudaFree(void* pointer) { return release(pointer, true); }
cudaError_t lockstep_host_cudaFreeHost(void* pointer) { return release(pointer, false); }

// Registered memory stays where it is: peers cannot map it, so communication goes through a staging copy, as before.
cudaError_t lockstep_host_cudaHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (const cudaError_t e = check_allowed()) return e;
  if (flags > 0xf) return cudaErrorInvalidValue;
  return register_host(pointer, bytes, flags, engine().current_device());
}
cudaError_t lockstep_host_cudaHostUnregister(void* pointer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (const cudaError_t e = check_allowed()) return e;
  return unregister_host(pointer);
}
cudaError_t lockstep_host_cudaHostGetDevicePointer(void** device, void* pointer, unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (device == nullptr || flags != 0 || memory_of(pointer) != Memory::pinned) return cudaErrorInvalidValue;
  *device = pointer;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaHostGetFlags(unsigned int* flags, void* pointer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto known = known_memory(pointer);
  if (flags == nullptr || !known || known->block.memory != Memory::pinned) return cudaErrorInvalidValue;
  *flags = known->registered ? known->flags : static_cast<unsigned>(cudaHostAllocMapped);
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaMemGetInfo(size_t* available, size_t* total) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (available == nullptr || total == nullptr) return cudaErrorInvalidValue;
  Heap* const heap = engine().heap();
  if (heap == nullptr) return cudaErrorMemoryAllocation;
  *total = heap->bytes();
  *available = heap->bytes() - heap->used();
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (attributes == nullptr) return cudaErrorInvalidValue;
  *attributes = {};
  const auto known = known_memory(pointer);
  if (!known) {
    attributes->device = -1;
    attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  attributes->device = known->block.device;
  attributes->devicePointer = const_cast<void*>(pointer);
  attributes->type = cudaMemoryTypeDevice;
  if (known->block.memory == Memory::pinned) attributes->type = cudaMemoryTypeHost;
  if (known->block.memory == Memory::managed) attributes->type = cudaMemoryTypeManaged;
  if (known->block.memory != Memory::device) attributes->hostPointer = attributes->devicePointer;
  return cudaSuccess;
}

// Managed memory is where it is; advice and moves change nothing that a program could see.
cudaError_t lockstep_host_cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (pointer == nullptr || bytes == 0 || advice < cudaMemAdviseSetReadMostly ||
      advice > cudaMemAdviseUnsetAccessedBy || memory_of(pointer) != Memory::managed)
    return cudaErrorInvalidValue;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation, unsigned int flags,
                                               cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (pointer == nullptr || bytes == 0 || flags != 0 || memory_of(pointer) != Memory::managed)
    return cudaErrorInvalidValue;
  return check_not_captured(stream);
}
cudaError_t lockstep_host_cudaStreamAttachMemAsync(cudaStream_t handle, void* pointer, size_t, unsigned int flags) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost && flags != cudaMemAttachSingle)
    return cudaErrorInvalidValue;
  if (memory_of(pointer) != Memory::managed) return cudaErrorInvalidValue;
  return check_not_captured(stream);
}

cudaError_t lockstep_host_cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return ipc_handle(pointer, handle);
}
cudaError_t lockstep_host_cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return flags > cudaIpcMemLazyEnablePeerAccess ? cudaErrorInvalidValue : ipc_open(handle, pointer);
}
cudaError_t lockstep_host_cudaIpcCloseMemHandle(void* pointer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return ipc_close(pointer);
}
