// SPDX-License-Identifier: MIT

#include "reference/train/core/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace train {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "lockstep-train: %s: %s\n", what, cudaGetErrorString(result));
  std::_Exit(1);
}

Event::Event() { check(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(handle_);
}

Stream::Stream() { check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
Stream::~Stream() { cudaStreamDestroy(handle_); }
void Stream::record(const Event& event) const { check(cudaEventRecord(event.get(), handle_), "cudaEventRecord"); }
void Stream::wait(const Event& event) const {
  check(cudaStreamWaitEvent(handle_, event.get(), 0), "cudaStreamWaitEvent");
}
void Stream::synchronize() const { check(cudaStreamSynchronize(handle_), "cudaStreamSynchronize"); }

std::string_view name_of(Purpose purpose) {
  constexpr std::array<std::string_view, kPurposes> kNames = {"parameters", "gradients",   "optimizer",
                                                              "gathered",   "activations", "workspace"};
  return kNames[static_cast<size_t>(purpose)];
}

Memory::Memory(int device) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  for (cudaMemPool_t& pool : pools_) check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
}

Memory::~Memory() {
  for (void* block : blocks_) cudaFreeAsync(block, stream_.get());
  stream_.synchronize();
  for (cudaMemPool_t pool : pools_) cudaMemPoolDestroy(pool);
}

void* Memory::allocate_bytes(Purpose purpose, size_t bytes) {
  if (bytes == 0) return nullptr;
  void* block = nullptr;
  check(cudaMallocFromPoolAsync(&block, bytes, pools_[static_cast<size_t>(purpose)], stream_.get()),
        "cudaMallocFromPoolAsync");
  check(cudaMemsetAsync(block, 0, bytes, stream_.get()), "cudaMemsetAsync");
  stream_.synchronize();
  blocks_.push_back(block);
  return block;
}

View Memory::allocate(Purpose purpose, Dtype dtype, int64_t count) {
  return {allocate_bytes(purpose, static_cast<size_t>(count) * size_of(dtype)), count, dtype};
}

static size_t attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
  uint64_t bytes = 0;
  check(cudaMemPoolGetAttribute(pool, which, &bytes), "cudaMemPoolGetAttribute");
  return bytes;
}
size_t Memory::used(Purpose purpose) const {
  return attribute(pools_[static_cast<size_t>(purpose)], cudaMemPoolAttrUsedMemCurrent);
}
size_t Memory::high(Purpose purpose) const {
  return attribute(pools_[static_cast<size_t>(purpose)], cudaMemPoolAttrUsedMemHigh);
}

void* Arena::take_bytes(size_t bytes) {
  constexpr size_t kAlignment = 64, kBlock = size_t{1} << 20;
  const size_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (current_ < blocks_.size() && blocks_[current_].bytes - blocks_[current_].used < wanted) ++current_;
  if (current_ == blocks_.size()) {
    const size_t size = std::max(wanted, kBlock);
    blocks_.push_back({static_cast<char*>(memory_.allocate_bytes(purpose_, size)), size, 0});
  }
  Block& block = blocks_[current_];
  void* piece = block.data + block.used;
  block.used += wanted;
  used_ += wanted;
  high_ = std::max(high_, used_);
  return piece;
}

View Arena::take(Dtype dtype, int64_t count) {
  return {take_bytes(static_cast<size_t>(count) * size_of(dtype)), count, dtype};
}

void Arena::reset() {
  for (Block& block : blocks_) block.used = 0;
  current_ = used_ = 0;
}

}  // namespace train
