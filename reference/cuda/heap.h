// SPDX-License-Identifier: MIT
//
// The memory of the fake devices: one sparse shared mapping a process, which its peers map too and read directly.
//
// It is a memfd, opened by peers as /proc/PID/fd/N: nothing of it has a name anywhere, so nothing is left after any
// kind of death, and Docker's 64 MiB of /dev/shm do not matter. Pages come into being when touched; freed ones are
// handed back by punching holes. "Device" and "pinned host" memory are the same bytes, told apart only where CUDA's
// rules tell them apart (whether an asynchronous copy blocks the host).

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "reference/cuda/allocator.h"

namespace lockstep::host {

enum class Memory : uint8_t { pageable, pinned, device, managed };

struct HeapBlock {
  uintptr_t begin = 0;
  size_t bytes = 0;
  Memory memory = Memory::pageable;
  int device = 0;
};

// Where a peer finds a heap. Plain values: they lie in shared memory.
struct HeapAddress {
  uint64_t nonce = 0;
  uint64_t bytes = 0;
  int32_t pid = 0;
  int32_t fd = -1;
};

// A peer's heap in this process; unmapped with the last user.
struct PeerHeap {
  explicit PeerHeap(std::byte* where, size_t size) : base(where), bytes(size) {}
  PeerHeap(const PeerHeap&) = delete;
  PeerHeap& operator=(const PeerHeap&) = delete;
  ~PeerHeap();
  std::byte* const base;
  const size_t bytes;
};

class Heap {
 public:
  static std::unique_ptr<Heap> create();  // nullptr: no memory, errno says why

  void* allocate(size_t bytes, Memory memory, int device);  // nullptr: full
  bool free(void* pointer);                                 // false: not the start of a block
  std::optional<HeapBlock> find(const void* pointer) const;
  // Offset of a pointer anywhere inside the heap, for peers.
  std::optional<uint64_t> offset_of(const void* pointer) const;

  const HeapAddress& address() const { return address_; }
  size_t used() const;
  size_t bytes() const { return address_.bytes; }

 private:
  Heap(std::byte* base, HeapAddress address);

  std::byte* const base_;
  const HeapAddress address_;
  mutable std::mutex mutex_;
  RangeAllocator ranges_;
  std::map<uintptr_t, HeapBlock> blocks_;
  size_t used_ = 0;
};

// nullptr when the peer is gone (or its pid means another process by now).
std::shared_ptr<PeerHeap> map_peer_heap(const HeapAddress& address);

}  // namespace lockstep::host
