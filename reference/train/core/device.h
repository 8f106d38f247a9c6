// SPDX-License-Identifier: MIT
//
// The CUDA objects a rank owns, closed by their destructors, and memory by purpose. Everything is allocated before the
// first step; a step allocates nothing, so a peak is the sum of what stands here and no stream-ordered free can race.

#pragma once

#include <cuda_runtime.h>

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "reference/train/core/tensor.h"

namespace train {

// Ends the process with one sentence unless the call succeeded. A rank that cannot go on must not leave its peers
// guessing.
void check(cudaError_t result, const char* what);

class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return handle_; }

 private:
  cudaEvent_t handle_ = nullptr;
};

class Stream {
 public:
  Stream();  // non-blocking
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return handle_; }
  void record(const Event& event) const;
  void wait(const Event& event) const;  // later work of this stream comes after the event
  void synchronize() const;

 private:
  cudaStream_t handle_ = nullptr;
};

// What memory is for. Each purpose has a CUDA memory pool of its own, so that CUDA itself accounts for it: the figures
// of --memory and of the tests are cudaMemPoolAttrUsedMemCurrent and cudaMemPoolAttrUsedMemHigh.
enum class Purpose { parameters, gradients, optimizer, gathered, activations, workspace };
inline constexpr int kPurposes = 6;
std::string_view name_of(Purpose purpose);

class Memory {
 public:
  explicit Memory(int device);
  ~Memory();  // frees all
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  View allocate(Purpose purpose, Dtype dtype, int64_t count);  // zeroed
  void* allocate_bytes(Purpose purpose, size_t bytes);         // zeroed
  size_t used(Purpose purpose) const;                          // bytes, by CUDA's account
  size_t high(Purpose purpose) const;

 private:
  std::array<cudaMemPool_t, kPurposes> pools_{};
  std::vector<void*> blocks_;
  Stream stream_;
};

// Memory that is taken piece by piece in a forward pass and given back as a whole after its backward pass: the saved
// activations of one micro-batch in flight. It grows in its first use and never after it, for every use takes the same.
class Arena {
 public:
  Arena(Memory& memory, Purpose purpose) : memory_(memory), purpose_(purpose) {}
  View take(Dtype dtype, int64_t count);
  void* take_bytes(size_t bytes);
  void reset();  // all is free again; views taken before are dangling
  size_t high() const { return high_; }

 private:
  struct Block {
    char* data;
    size_t bytes, used;
  };
  Memory& memory_;
  Purpose purpose_;
  std::vector<Block> blocks_;
  size_t current_ = 0, used_ = 0, high_ = 0;
};

}  // namespace train
