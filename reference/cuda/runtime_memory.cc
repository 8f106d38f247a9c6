// SPDX-License-Identifier: MIT
//
// Memory and copies. Which copies hold the host up follows CUDA's rules, because programs hang by them:
// an asynchronous copy from device to pageable memory returns only when it is done, one from pageable memory takes the
// source's bytes before it returns, and only copies between device and pinned memory are asynchronous altogether.

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "reference/cuda/engine.h"
#include "reference/cuda/resolve.h"
#include "reference/cuda/runtime.h"

using namespace lockstep::host;

namespace {

constexpr size_t kStepBytes = 256u << 10;

class CopyOp final : public Op {
 public:
  CopyOp(void* dst, const void* src, size_t bytes)
      : dst_(static_cast<std::byte*>(dst)), src_(static_cast<const std::byte*>(src)), bytes_(bytes) {}
  // Source taken along, for pageable memory.
  CopyOp(void* dst, std::vector<std::byte> taken)
      : taken_(std::move(taken)), dst_(static_cast<std::byte*>(dst)), src_(taken_.data()), bytes_(taken_.size()) {}

  Step step() override {
    const size_t piece = std::min(kStepBytes, bytes_ - done_);
    std::memmove(dst_ + done_, src_ + done_, piece);
    done_ += piece;
    return done_ == bytes_ ? Step::done : Step::progressed;
  }

 private:
  const std::vector<std::byte> taken_;
  std::byte* const dst_;
  const std::byte* const src_;
  const size_t bytes_;
  size_t done_ = 0;
};

class SetOp final : public Op {
 public:
  SetOp(void* at, int value, size_t bytes) : at_(static_cast<std::byte*>(at)), value_(value), bytes_(bytes) {}
  Step step() override {
    const size_t piece = std::min(kStepBytes, bytes_ - done_);
    std::memset(at_ + done_, value_, piece);
    done_ += piece;
    return done_ == bytes_ ? Step::done : Step::progressed;
  }

 private:
  std::byte* const at_;
  const int value_;
  const size_t bytes_;
  size_t done_ = 0;
};

class FreeOp final : public Op {
 public:
  explicit FreeOp(void* pointer) : pointer_(pointer) {}
  Step step() override {
    engine().free(pointer_);
    return Step::done;
  }

 private:
  void* const pointer_;
};

cudaError_t allocate(void** pointer, size_t bytes, Memory memory) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (pointer == nullptr) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = engine().allocate(bytes, memory, engine().current_device());
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

Memory memory_of(const void* pointer) {
  const auto block = engine().heap_offset(pointer) ? engine().heap()->find(pointer) : std::nullopt;
  return block ? block->memory : Memory::pageable;
}

// Frees wait until the device is done with the memory, as cudaFree does.
cudaError_t release(void* pointer, bool want_device) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (pointer == nullptr) return cudaSuccess;
  const Memory memory = memory_of(pointer);
  const bool is_device = memory == Memory::device || memory == Memory::managed;
  if (memory == Memory::pageable || is_device != want_device) return cudaErrorInvalidValue;
  if (engine().heap()->find(pointer)->begin != reinterpret_cast<uintptr_t>(pointer)) return cudaErrorInvalidValue;
  engine().wait_device(engine().heap()->find(pointer)->device);
  return engine().free(pointer) ? cudaSuccess : cudaErrorInvalidValue;
}

bool valid_kind(cudaMemcpyKind kind) { return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault; }

}  // namespace

cudaError_t lockstep_host_cudaMalloc(void** pointer, size_t bytes) { return allocate(pointer, bytes, Memory::device); }
cudaError_t lockstep_host_cudaMallocHost(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, Memory::pinned);
}
cudaError_t lockstep_host_cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  return allocate(pointer, bytes, Memory::pinned);
}
cudaError_t lockstep_host_cudaMallocManaged(void** pointer, size_t bytes, unsigned int) {
  return allocate(pointer, bytes, Memory::managed);
}
cudaError_t lockstep_host_cudaFree(void* pointer) { return release(pointer, true); }
cudaError_t lockstep_host_cudaFreeHost(void* pointer) { return release(pointer, false); }

// The memory is there at once; only its end is ordered by the stream.
cudaError_t lockstep_host_cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  return allocate(pointer, bytes, Memory::device);
}
cudaError_t lockstep_host_cudaFreeAsync(void* pointer, cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (pointer == nullptr) return cudaSuccess;
  if (memory_of(pointer) != Memory::device) return cudaErrorInvalidValue;
  engine().submit(stream, std::make_unique<FreeOp>(pointer), {});
  return cudaSuccess;
}

// Registered memory stays where it is: peers cannot map it, so communication goes through a staging copy, as before.
cudaError_t lockstep_host_cudaHostRegister(void* pointer, size_t bytes, unsigned int) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return pointer == nullptr || bytes == 0 ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t lockstep_host_cudaHostUnregister(void* pointer) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return pointer == nullptr ? cudaErrorInvalidValue : cudaSuccess;
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
  const auto block = engine().heap_offset(pointer) ? engine().heap()->find(pointer) : std::nullopt;
  if (!block) {
    attributes->device = -1;
    attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  attributes->device = block->device;
  attributes->devicePointer = const_cast<void*>(pointer);
  attributes->type = cudaMemoryTypeDevice;
  if (block->memory == Memory::pinned) attributes->type = cudaMemoryTypeHost;
  if (block->memory == Memory::managed) attributes->type = cudaMemoryTypeManaged;
  if (block->memory != Memory::device) attributes->hostPointer = attributes->devicePointer;
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(nullptr, stream)) return e;
  if (!valid_kind(kind)) return cudaErrorInvalidMemcpyDirection;
  if (bytes == 0) return cudaSuccess;
  if (dst == nullptr || src == nullptr) return cudaErrorInvalidValue;
  if (engine().quiet(stream))  // nothing to wait for, so no need of the queue
    std::memmove(dst, src, bytes);
  else
    engine().wait(engine().submit(stream, std::make_unique<CopyOp>(dst, src, bytes), {}));
  return lockstep_host_sticky_error();
}

cudaError_t lockstep_host_cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                                          cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (!valid_kind(kind)) return cudaErrorInvalidMemcpyDirection;
  if (bytes == 0) return cudaSuccess;
  if (dst == nullptr || src == nullptr) return cudaErrorInvalidValue;
  const bool to_pageable = memory_of(dst) == Memory::pageable;
  const bool from_pageable = memory_of(src) == Memory::pageable;
  if (from_pageable && !to_pageable) {
    const auto* first = static_cast<const std::byte*>(src);
    engine().submit(stream, std::make_unique<CopyOp>(dst, std::vector<std::byte>(first, first + bytes)), {});
    return cudaSuccess;
  }
  const Point point = engine().submit(stream, std::make_unique<CopyOp>(dst, src, bytes), {});
  if (to_pageable) engine().wait(point);
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (bytes == 0) return cudaSuccess;
  if (pointer == nullptr) return cudaErrorInvalidValue;
  engine().submit(stream, std::make_unique<SetOp>(pointer, value, bytes), {});
  return cudaSuccess;
}
// Asynchronous with respect to the host on device memory, done at return on pinned memory.
cudaError_t lockstep_host_cudaMemset(void* pointer, int value, size_t bytes) {
  if (const cudaError_t e = lockstep_host_cudaMemsetAsync(pointer, value, bytes, nullptr)) return e;
  if (memory_of(pointer) == Memory::device) return cudaSuccess;
  return lockstep_host_cudaStreamSynchronize(nullptr);
}
