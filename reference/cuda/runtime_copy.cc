// SPDX-License-Identifier: MIT
//
// Copies and memsets. Which of them hold the host up follows CUDA's rules, because programs hang by them: an
// asynchronous copy from device to pageable memory returns only when it is done, one from pageable memory takes the
// source's bytes before it returns, and only copies between device and pinned memory are asynchronous altogether.

#include <memory>
#include <utility>
#include <vector>

#include "interpose/include/lockstep.h"
#include "reference/cuda/activity.h"
#include "reference/cuda/capture.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/registered.h"
#include "reference/cuda/resolve.h"
#include "reference/cuda/runtime.h"

using namespace lockstep::host;

namespace {

bool valid_kind(cudaMemcpyKind kind) { return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault; }
bool is_pageable(const void* pointer) { return memory_of(pointer) == Memory::pageable; }

cudaError_t flat(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, Copy& copy) {
  if (!valid_kind(kind)) return cudaErrorInvalidMemcpyDirection;
  if (bytes > 0 && (dst == nullptr || src == nullptr)) return cudaErrorInvalidValue;
  copy = flat_copy(dst, src, bytes);
  return cudaSuccess;
}
cudaError_t rows(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width, size_t height,
                 cudaMemcpyKind kind, Copy& copy) {
  if (!valid_kind(kind)) return cudaErrorInvalidMemcpyDirection;
  if (width > dst_pitch || width > src_pitch) return cudaErrorInvalidPitchValue;
  if (width * height > 0 && (dst == nullptr || src == nullptr)) return cudaErrorInvalidValue;
  copy = flat_copy(dst, src, width);
  copy.height = height;
  copy.dst_pitch = dst_pitch;
  copy.src_pitch = src_pitch;
  return cudaSuccess;
}

// `made` says whether the arguments were any good; it is looked at after what is wrong with the process or the stream.
cudaError_t copy_and_wait(cudaError_t made, const Copy& copy) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(nullptr, stream)) return e;
  if (made != cudaSuccess) return made;
  if (const cudaError_t e = check_not_captured(stream)) return e;
  if (const cudaError_t e = check_allowed()) return e;
  if (copy.bytes() == 0) return cudaSuccess;
  if (engine().quiet(stream)) {  // nothing to wait for, so no need of the queue
    const int64_t begun = activity_sink() != nullptr ? now_ns() : 0;
    copy_now(copy);
    tell_activity_now(LOCKSTEP_ACTIVITY_COPY, *stream, begun, "memcpy");
  } else {
    engine().wait(engine().submit(stream, make_copy(copy), {}));
  }
  return lockstep_host_sticky_error();
}

cudaError_t copy_later(cudaError_t made, const Copy& copy, cudaMemcpyKind kind, cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (made != cudaSuccess) return made;
  if (copy.bytes() == 0) return cudaSuccess;
  bool captured = false;
  const auto node = [&] { return Task{cudaGraphNodeTypeMemcpy, params_of(copy, kind)}; };
  if (const cudaError_t e = capture(stream, node, captured); e != cudaSuccess || captured) return e;
  const bool to_pageable = is_pageable(copy.dst);
  const bool from_pageable = is_pageable(copy.src);
  if (from_pageable && !to_pageable && copy.height == 1 && copy.depth == 1) {
    engine().submit(stream, make_copy(copy.dst, {copy.src, copy.src + copy.width}), {});
    return cudaSuccess;
  }
  const Point point = engine().submit(stream, make_copy(copy), {});
  if (to_pageable || from_pageable) engine().wait(point);
  return cudaSuccess;
}

cudaError_t fill_later(const Fill& fill, cudaStream_t handle, bool may_be_captured) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (const cudaError_t e = check(fill)) return e;
  if (!may_be_captured)
    if (const cudaError_t e = check_not_captured(stream)) return e;
  if (fill.width == 0 || fill.height == 0) return cudaSuccess;
  bool captured = false;
  const auto node = [&] { return Task{cudaGraphNodeTypeMemset, fill}; };
  if (const cudaError_t e = capture(stream, node, captured); e != cudaSuccess || captured) return e;
  const Point point = engine().submit(stream, make_fill(fill), {});
  // Without a stream argument: asynchronous on device memory, done at return on pinned memory.
  if (!may_be_captured && memory_of(fill.dst) != Memory::device) engine().wait(point);
  return cudaSuccess;
}

Fill row_fill(void* at, size_t pitch, int value, size_t width, size_t height) {
  return {at, pitch, static_cast<unsigned>(value) & 0xffu, 1, width, height};
}
// A box of bytes is rows of one height where its slices follow each other, as they do in what cudaMalloc3D gives.
Fill box_fill(const cudaPitchedPtr& at, int value, const cudaExtent& extent) {
  return row_fill(at.ptr, at.pitch, value, extent.width, extent.height * extent.depth);
}

}  // namespace

cudaError_t lockstep_host_cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  Copy copy;
  const cudaError_t made = flat(dst, src, bytes, kind, copy);
  return copy_and_wait(made, copy);
}
cudaError_t lockstep_host_cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                                          cudaStream_t stream) {
  Copy copy;
  const cudaError_t made = flat(dst, src, bytes, kind, copy);
  return copy_later(made, copy, kind, stream);
}
cudaError_t lockstep_host_cudaMemcpyPeer(void* dst, int dst_device, const void* src, int src_device, size_t bytes) {
  const int devices = engine().device_count();
  if (dst_device < 0 || dst_device >= devices || src_device < 0 || src_device >= devices) return cudaErrorInvalidDevice;
  return lockstep_host_cudaMemcpy(dst, src, bytes, cudaMemcpyDefault);
}
cudaError_t lockstep_host_cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device, size_t bytes,
                                              cudaStream_t stream) {
  const int devices = engine().device_count();
  if (dst_device < 0 || dst_device >= devices || src_device < 0 || src_device >= devices) return cudaErrorInvalidDevice;
  return lockstep_host_cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream);
}
cudaError_t lockstep_host_cudaMemcpy2D(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                                       size_t height, cudaMemcpyKind kind) {
  Copy copy;
  const cudaError_t made = rows(dst, dst_pitch, src, src_pitch, width, height, kind, copy);
  return copy_and_wait(made, copy);
}
cudaError_t lockstep_host_cudaMemcpy2DAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
                                            size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  Copy copy;
  const cudaError_t made = rows(dst, dst_pitch, src, src_pitch, width, height, kind, copy);
  return copy_later(made, copy, kind, stream);
}
cudaError_t lockstep_host_cudaMemcpy3D(const cudaMemcpy3DParms* params) {
  if (params == nullptr) return cudaErrorInvalidValue;
  Copy copy;
  const cudaError_t made = copy_of(*params, copy);
  return copy_and_wait(made, copy);
}
cudaError_t lockstep_host_cudaMemcpy3DAsync(const cudaMemcpy3DParms* params, cudaStream_t stream) {
  if (params == nullptr) return cudaErrorInvalidValue;
  Copy copy;
  const cudaError_t made = copy_of(*params, copy);
  return copy_later(made, copy, params->kind, stream);
}

cudaError_t lockstep_host_cudaMemset(void* at, int value, size_t bytes) {
  return fill_later(flat_fill(at, value, bytes), nullptr, false);
}
cudaError_t lockstep_host_cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  return fill_later(flat_fill(at, value, bytes), stream, true);
}
cudaError_t lockstep_host_cudaMemset2D(void* at, size_t pitch, int value, size_t width, size_t height) {
  return fill_later(row_fill(at, pitch, value, width, height), nullptr, false);
}
cudaError_t lockstep_host_cudaMemset2DAsync(void* at, size_t pitch, int value, size_t width, size_t height,
                                            cudaStream_t stream) {
  return fill_later(row_fill(at, pitch, value, width, height), stream, true);
}
cudaError_t lockstep_host_cudaMemset3D(cudaPitchedPtr at, int value, cudaExtent extent) {
  if (extent.depth > 1 && at.ysize != extent.height) return cudaErrorNotSupported;
  return fill_later(box_fill(at, value, extent), nullptr, false);
}
cudaError_t lockstep_host_cudaMemset3DAsync(cudaPitchedPtr at, int value, cudaExtent extent, cudaStream_t stream) {
  if (extent.depth > 1 && at.ysize != extent.height) return cudaErrorNotSupported;
  return fill_later(box_fill(at, value, extent), stream, true);
}
