// SPDX-License-Identifier: MIT
//
// Which parts of a range of addresses are taken: best fit over free blocks that merge with their neighbours. It knows
// nothing of memory itself; the heap asks it which freed bytes are worth handing back to the system.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::host {

class RangeAllocator {
 public:
  RangeAllocator(uint64_t begin, uint64_t end);

  std::optional<uint64_t> take(uint64_t bytes, uint64_t alignment);

  // Gives a range back. Returns the part of the free block around it that should be handed to the system now: enough of
  // it was used since the last time. Empty most of the time.
  std::optional<std::pair<uint64_t, uint64_t>> give(uint64_t begin, uint64_t bytes);

 private:
  struct Block {
    uint64_t end;
    uint64_t dirty;  // bytes that were in use since they were last handed back
  };
  void insert(uint64_t begin, Block block);
  void erase(std::map<uint64_t, Block>::iterator at);

  std::map<uint64_t, Block> free_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (size, begin)
};

}  // namespace lockstep::host
