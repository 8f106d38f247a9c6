// SPDX-License-Identifier: MIT
//
// See work.h.

#include "reference/cuda/work.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "interpose/include/lockstep.h"

namespace lockstep::host {
namespace {

constexpr size_t kStepBytes = 256u << 10;

bool contiguous(const Copy& copy) {
  return copy.depth == 1 && (copy.height == 1 || (copy.dst_pitch == copy.width && copy.src_pitch == copy.width));
}

// One long row where that is the same; any other box keeps its rows.
Copy flattened(Copy copy) {
  if (contiguous(copy)) {
    copy.width *= copy.height;
    copy.height = 1;
  }
  return copy;
}

class CopyOp final : public Op {
 public:
  explicit CopyOp(const Copy& copy) : copy_(flattened(copy)) {}
  CopyOp(void* dst, std::vector<std::byte> taken)
      : taken_(std::move(taken)), copy_(flat_copy(dst, taken_.data(), taken_.size())) {}

  Step step() override {
    for (size_t left = kStepBytes; left > 0 && slice_ < copy_.depth;) left -= std::min(left, piece(left));
    return slice_ == copy_.depth ? Step::done : Step::progressed;
  }
  Activity activity() const override { return {LOCKSTEP_ACTIVITY_COPY, "memcpy"}; }

 private:
  // At most so many bytes of the row we are in. Returns how many (at least one, so that empty rows end too).
  size_t piece(size_t most) {
    const size_t bytes = std::min(most, copy_.width - column_);
    std::memmove(copy_.dst + slice_ * copy_.dst_slice + row_ * copy_.dst_pitch + column_,
                 copy_.src + slice_ * copy_.src_slice + row_ * copy_.src_pitch + column_, bytes);
    column_ += bytes;
    if (column_ < copy_.width) return bytes;
    column_ = 0;
    if (++row_ == copy_.height) {
      row_ = 0;
      ++slice_;
    }
    return std::max<size_t>(bytes, 1);
  }

  const std::vector<std::byte> taken_;
  const Copy copy_;
  size_t slice_ = 0, row_ = 0, column_ = 0;
};

void fill_bytes(std::byte* at, unsigned value, unsigned element, size_t bytes) {
  if (element == 1) {
    std::memset(at, static_cast<int>(value), bytes);
    return;
  }
  for (size_t i = 0; i < bytes; i += element) std::memcpy(at + i, &value, element);  // little-endian, as a GPU
}

class FillOp final : public Op {
 public:
  explicit FillOp(const Fill& fill) : fill_(fill), row_bytes_(fill.width * fill.elementSize) {}
  Step step() override {
    for (size_t left = kStepBytes; left > 0 && row_ < fill_.height;) left -= std::min(left, piece(left));
    return row_ == fill_.height ? Step::done : Step::progressed;
  }
  Activity activity() const override { return {LOCKSTEP_ACTIVITY_MEMSET, "memset"}; }

 private:
  size_t piece(size_t most) {
    const size_t bytes = std::min(std::max<size_t>(most / 4 * 4, 4), row_bytes_ - column_);
    fill_bytes(static_cast<std::byte*>(fill_.dst) + row_ * fill_.pitch + column_, fill_.value, fill_.elementSize,
               bytes);
    column_ += bytes;
    if (column_ == row_bytes_) {
      column_ = 0;
      ++row_;
    }
    return std::max<size_t>(bytes, 1);
  }
  const Fill fill_;
  const size_t row_bytes_;
  size_t row_ = 0, column_ = 0;
};

class Marker final : public Op {
 public:
  Step step() override { return Step::done; }
};

void run_to_end(Op& op) {
  while (op.step() != Step::done) {
  }
}

}  // namespace

Copy flat_copy(void* dst, const void* src, size_t bytes) {
  Copy copy;
  copy.dst = static_cast<std::byte*>(dst);
  copy.src = static_cast<const std::byte*>(src);
  copy.width = bytes;
  return copy;
}

cudaError_t copy_of(const cudaMemcpy3DParms& params, Copy& copy) {
  if (params.srcArray != nullptr || params.dstArray != nullptr) return cudaErrorNotSupported;
  if (params.kind < cudaMemcpyHostToHost || params.kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  const cudaExtent& size = params.extent;
  const auto first = [](const cudaPitchedPtr& at, const cudaPos& where) {
    return static_cast<std::byte*>(at.ptr) + (where.z * at.ysize + where.y) * at.pitch + where.x;
  };
  copy.width = size.width;
  copy.height = size.height;
  copy.depth = size.depth;
  if (copy.bytes() == 0) return cudaSuccess;
  if (params.srcPtr.ptr == nullptr || params.dstPtr.ptr == nullptr) return cudaErrorInvalidValue;
  const bool rows = size.height > 1 || size.depth > 1;
  if (rows && (size.width > params.srcPtr.pitch || size.width > params.dstPtr.pitch)) return cudaErrorInvalidPitchValue;
  copy.src = first(params.srcPtr, params.srcPos);
  copy.dst = first(params.dstPtr, params.dstPos);
  copy.src_pitch = params.srcPtr.pitch;
  copy.dst_pitch = params.dstPtr.pitch;
  copy.src_slice = params.srcPtr.pitch * params.srcPtr.ysize;
  copy.dst_slice = params.dstPtr.pitch * params.dstPtr.ysize;
  return cudaSuccess;
}

cudaMemcpy3DParms params_of(const Copy& copy, cudaMemcpyKind kind) {
  cudaMemcpy3DParms params{};
  const auto pitched = [&](const void* at, size_t pitch) {
    return cudaPitchedPtr{const_cast<void*>(at), pitch != 0 ? pitch : copy.width, copy.width, copy.height};
  };
  params.srcPtr = pitched(copy.src, copy.src_pitch);
  params.dstPtr = pitched(copy.dst, copy.dst_pitch);
  if (copy.src_pitch != 0) params.srcPtr.ysize = copy.src_slice != 0 ? copy.src_slice / copy.src_pitch : copy.height;
  if (copy.dst_pitch != 0) params.dstPtr.ysize = copy.dst_slice != 0 ? copy.dst_slice / copy.dst_pitch : copy.height;
  params.extent = {copy.width, copy.height, copy.depth};
  params.kind = kind;
  return params;
}

Fill flat_fill(void* at, int value, size_t bytes) {
  return {at, bytes, static_cast<unsigned>(value) & 0xffu, 1, bytes, 1};
}
cudaError_t check(const Fill& fill) {
  if (fill.elementSize != 1 && fill.elementSize != 2 && fill.elementSize != 4) return cudaErrorInvalidValue;
  if (fill.width == 0 || fill.height == 0) return cudaSuccess;
  if (fill.dst == nullptr) return cudaErrorInvalidValue;
  return fill.height > 1 && fill.width * fill.elementSize > fill.pitch ? cudaErrorInvalidValue : cudaSuccess;
}

std::unique_ptr<Op> make_copy(const Copy& copy) { return std::make_unique<CopyOp>(copy); }
std::unique_ptr<Op> make_copy(void* dst, std::vector<std::byte> taken) {
  return std::make_unique<CopyOp>(dst, std::move(taken));
}
std::unique_ptr<Op> make_fill(const Fill& fill) { return std::make_unique<FillOp>(fill); }
std::unique_ptr<Op> make_marker() { return std::make_unique<Marker>(); }

void copy_now(const Copy& copy) {
  CopyOp op(copy);
  run_to_end(op);
}
void fill_now(const Fill& fill) {
  FillOp op(fill);
  run_to_end(op);
}

}  // namespace lockstep::host
