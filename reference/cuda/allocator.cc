// SPDX-License-Identifier: MIT
//
// See allocator.h.

#include "reference/cuda/allocator.h"

namespace lockstep::host {
namespace {

// Handing pages back costs a system call and, later, a page fault each; below this it is not worth it.
constexpr uint64_t kWorthHandingBack = 1u << 20;

uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

RangeAllocator::RangeAllocator(uint64_t begin, uint64_t end) { insert(begin, {end, 0}); }

void RangeAllocator::insert(uint64_t begin, Block block) {
  free_.emplace(begin, block);
  by_size_.emplace(block.end - begin, begin);
}

void RangeAllocator::erase(std::map<uint64_t, Block>::iterator at) {
  by_size_.erase({at->second.end - at->first, at->first});
  free_.erase(at);
}

std::optional<uint64_t> RangeAllocator::take(uint64_t bytes, uint64_t alignment) {
  for (auto fit = by_size_.lower_bound({bytes, 0}); fit != by_size_.end(); ++fit) {
    const uint64_t begin = fit->second;
    const uint64_t at = round_up(begin, alignment);
    const Block block = free_.at(begin);
    if (at + bytes > block.end) continue;
    erase(free_.find(begin));
    if (at > begin) insert(begin, {at, block.dirty < at - begin ? block.dirty : at - begin});
    if (at + bytes < block.end) {
      const uint64_t rest = block.end - (at + bytes);
      insert(at + bytes, {block.end, block.dirty < rest ? block.dirty : rest});
    }
    return at;
  }
  return std::nullopt;
}

std::optional<std::pair<uint64_t, uint64_t>> RangeAllocator::give(uint64_t begin, uint64_t bytes) {
  Block merged{begin + bytes, bytes};
  auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    auto before = std::prev(after);
    if (before->second.end == begin) {
      begin = before->first;
      merged.dirty += before->second.dirty;
      erase(before);
    }
  }
  if (after != free_.end() && after->first == merged.end) {
    merged.end = after->second.end;
    merged.dirty += after->second.dirty;
    erase(after);
  }
  const bool hand_back = merged.dirty >= kWorthHandingBack;
  if (hand_back) merged.dirty = 0;
  insert(begin, merged);
  if (!hand_back) return std::nullopt;
  return std::pair{begin, merged.end};
}

}  // namespace lockstep::host
