// SPDX-License-Identifier: MIT
//
// See registered.h.

#include "reference/cuda/registered.h"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "reference/cuda/engine.h"

namespace lockstep::host {
namespace {

struct Outside {
  Known known;
  std::shared_ptr<PeerHeap> peer;  // for opened memory
  int opened = 0;
};
struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, Outside> ranges;  // by first byte; they do not overlap
  std::atomic<int> count{0};
};
Registry& registry() {
  static Registry* const the_one = new Registry;  // never destroyed; see engine.h
  return *the_one;
}

// What travels in a cudaIpcMemHandle_t.
struct Ticket {
  char magic[8];
  HeapAddress heap;
  uint64_t offset;
  uint64_t bytes;
  int32_t device;
};
static_assert(sizeof(Ticket) <= sizeof(cudaIpcMemHandle_t));
constexpr char kTicketMagic[8] = {'L', 'S', 'I', 'P', 'C', 'M', '0', '1'};

// The registry must be locked.
Outside* find(uintptr_t at) {
  auto range = registry().ranges.upper_bound(at);
  if (range == registry().ranges.begin()) return nullptr;
  --range;
  const HeapBlock& block = range->second.known.block;
  return at < block.begin + block.bytes ? &range->second : nullptr;
}

}  // namespace

cudaError_t register_host(void* pointer, size_t bytes, unsigned int flags, int device) {
  if (pointer == nullptr || bytes == 0) return cudaErrorInvalidValue;
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  if (engine().heap_offset(pointer)) return cudaErrorHostMemoryAlreadyRegistered;
  const std::lock_guard lock(registry().mutex);
  const auto next = registry().ranges.lower_bound(begin);
  if (find(begin) != nullptr || (next != registry().ranges.end() && next->first < begin + bytes))
    return cudaErrorHostMemoryAlreadyRegistered;
  Outside range;
  range.known = {{begin, bytes, Memory::pinned, device}, true, flags};
  registry().ranges.emplace(begin, std::move(range));
  registry().count.fetch_add(1);
  return cudaSuccess;
}
cudaError_t unregister_host(void* pointer) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  const std::lock_guard lock(registry().mutex);
  const auto range = registry().ranges.find(reinterpret_cast<uintptr_t>(pointer));
  if (range == registry().ranges.end() || !range->second.known.registered) return cudaErrorHostMemoryNotRegistered;
  registry().ranges.erase(range);
  registry().count.fetch_sub(1);
  return cudaSuccess;
}

cudaError_t ipc_handle(void* pointer, cudaIpcMemHandle_t* handle) {
  if (handle == nullptr || pointer == nullptr || !engine().heap_offset(pointer)) return cudaErrorInvalidValue;
  const auto block = engine().heap()->find(pointer);
  if (!block || block->memory != Memory::device) return cudaErrorInvalidValue;
  Ticket ticket{};
  std::memcpy(ticket.magic, kTicketMagic, sizeof kTicketMagic);
  ticket.heap = engine().heap_address();
  ticket.offset = *engine().heap_offset(reinterpret_cast<void*>(block->begin));
  ticket.bytes = block->bytes;
  ticket.device = block->device;
  *handle = {};
  std::memcpy(handle, &ticket, sizeof ticket);
  return cudaSuccess;
}

cudaError_t ipc_open(const cudaIpcMemHandle_t& handle, void** pointer) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  Ticket ticket;
  std::memcpy(static_cast<void*>(&ticket), &handle, sizeof ticket);
  if (std::memcmp(ticket.magic, kTicketMagic, sizeof kTicketMagic) != 0) return cudaErrorInvalidValue;
  if (ticket.heap.nonce == engine().heap_address().nonce) return cudaErrorDeviceUninitialized;  // as CUDA says it
  if (ticket.bytes == 0 || ticket.offset > ticket.heap.bytes || ticket.bytes > ticket.heap.bytes - ticket.offset)
    return cudaErrorInvalidValue;
  const auto peer = engine().peer_heap(ticket.heap);
  if (!peer) return cudaErrorInvalidResourceHandle;  // its process is gone
  const auto begin = reinterpret_cast<uintptr_t>(peer->base + ticket.offset);
  *pointer = reinterpret_cast<void*>(begin);
  const std::lock_guard lock(registry().mutex);
  Outside& range = registry().ranges[begin];
  if (range.opened++ > 0) return cudaSuccess;
  range.known = {{begin, ticket.bytes, Memory::device, ticket.device}, false, 0};
  range.peer = peer;
  registry().count.fetch_add(1);
  return cudaSuccess;
}
cudaError_t ipc_close(void* pointer) {
  std::shared_ptr<PeerHeap> last;
  const std::lock_guard lock(registry().mutex);
  const auto range = registry().ranges.find(reinterpret_cast<uintptr_t>(pointer));
  if (range == registry().ranges.end() || range->second.known.registered) return cudaErrorInvalidValue;
  if (--range->second.opened > 0) return cudaSuccess;
  last = std::move(range->second.peer);
  registry().ranges.erase(range);
  registry().count.fetch_sub(1);
  return cudaSuccess;
}

std::optional<Known> known_memory(const void* pointer) {
  if (engine().heap_offset(pointer)) {
    const auto block = engine().heap()->find(pointer);
    if (!block) return std::nullopt;
    return Known{*block, false, 0};
  }
  if (registry().count.load(std::memory_order_acquire) == 0) return std::nullopt;
  const std::lock_guard lock(registry().mutex);
  const Outside* const range = find(reinterpret_cast<uintptr_t>(pointer));
  if (range == nullptr) return std::nullopt;
  return range->known;
}

Memory memory_of(const void* pointer) {
  const auto known = known_memory(pointer);
  return known ? known->block.memory : Memory::pageable;
}

}  // namespace lockstep::host
