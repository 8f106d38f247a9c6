// SPDX-License-Identifier: MIT
//
// One collective as a resumable machine. All ranks meet first, each having written down what it is about to do; then
//
//   small   every rank computes its own result from the data in the descriptors; nothing more to agree on
//   large   ranks read each other's buffers where they lie. An all-reduce reduces a slice a rank, meets, gathers the
//           slices, meets; the others do one such round. The last meeting keeps a rank's buffers untouched by the user
//           until nobody reads them any more.
//
// Mismatches behave as with NCCL, where nothing compares the ranks' arguments either: another function or root never
// ends; another type of the same size, or another operator, ends with whatever comes out; other sizes end, with a wrong
// tail, when both make the same number of chunks, and never otherwise (LOCKSTEP_HOST_MISMATCH=hang|finish forces one).
// No rank ever reads beyond a peer's buffer.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "reference/cuda/op.h"
#include "reference/nccl/algorithm.h"
#include "reference/nccl/comm.h"
#include "reference/nccl/reduce.h"

namespace lockstep::nccl {

inline constexpr size_t kMismatchChunkBytes = 16u << 10;

// Memory of the shared heap for as long as one operation needs it.
class Staging {
 public:
  Staging() = default;
  Staging(Staging&& other) noexcept : at_(std::exchange(other.at_, nullptr)) {}
  Staging& operator=(Staging&&) = delete;
  ~Staging() {
    if (at_ != nullptr) api().free(at_);
  }
  std::byte* get(size_t bytes, int device) {
    if (at_ == nullptr) at_ = static_cast<std::byte*>(api().allocate(bytes, host::Memory::pinned, device));
    return at_;
  }

 private:
  std::byte* at_ = nullptr;
};

class Collective {
 public:
  Collective(Comm& comm, const Call& call);
  host::Step step();

 private:
  enum class State { start, stage, meet, stuck, slice, swap, gather, leave, over };

  size_t block() const { return call_.bytes(); }  // one rank's block of the call
  size_t send_bytes() const;
  Descriptor& descriptor(int rank) const;
  bool met() const;
  void arrive();
  host::Step publish();
  host::Step stage();
  void fetch_descriptors() const;
  void fetch_next_descriptor() const;
  void settle();
  bool agreed() const;
  bool all_inline() const;
  void small();
  const std::byte* input(int rank, size_t offset) const;
  bool inputs(size_t offset, std::vector<Input>& out) const;
  host::Step slice();
  host::Step gather();
  host::Step copy_blocks();
  host::Step finish_round();
  std::byte* result_home();
  void keep_own_tail();
  void reduce_into(std::byte* dst, size_t offset, size_t bytes);

  Comm& comm_;
  const Call call_;
  State state_ = State::start;
  uint64_t index_ = 0;      // of this collective in its communicator
  uint64_t my_phase_ = 0;   // the one this rank is in
  size_t span_ = 0;         // bytes of a block that all ranks have
  size_t slice_begin_ = 0;  // all-reduce: the part this rank reduces
  size_t slice_end_ = 0;
  size_t done_ = 0;  // bytes of the current state's work
  int peer_ = 0;     // whose block is being copied
  Staging send_staging_;
  Staging recv_staging_;
  Order order_;
};

}  // namespace lockstep::nccl
