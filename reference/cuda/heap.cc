// SPDX-License-Identifier: MIT
//
// See heap.h.

#include "reference/cuda/heap.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace lockstep::host {
namespace {

// ThreadSanitizer's shadow leaves little address space for mappings.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kHeapBytes = 4ull << 30;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr uint64_t kHeapBytes = 4ull << 30;
#else
constexpr uint64_t kHeapBytes = 64ull << 30;
#endif
#else
constexpr uint64_t kHeapBytes = 64ull << 30;
#endif

constexpr uint64_t kPage = 4096;
constexpr uint64_t kAlignment = 256;  // what cudaMalloc promises
constexpr char kHeapMagic[8] = {'L', 'S', 'H', 'E', 'A', 'P', '0', '1'};

// First page of every heap; tells a peer that it opened what it meant to.
struct HeapHeader {
  char magic[8];
  uint64_t nonce;
};

std::byte* map_shared(int fd, uint64_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

Heap::Heap(std::byte* base, HeapAddress address)
    : base_(base),
      address_(address),
      ranges_(reinterpret_cast<uintptr_t>(base) + kPage, reinterpret_cast<uintptr_t>(base) + address.bytes) {}

std::unique_ptr<Heap> Heap::create() {
  HeapAddress address;
  address.bytes = kHeapBytes;
  address.pid = getpid();
  if (getrandom(&address.nonce, sizeof address.nonce, 0) != sizeof address.nonce) return nullptr;
  address.fd = memfd_create("lockstep-host-heap", MFD_CLOEXEC);
  if (address.fd < 0) return nullptr;
  std::byte* base =
      ftruncate(address.fd, static_cast<off_t>(kHeapBytes)) == 0 ? map_shared(address.fd, kHeapBytes) : nullptr;
  if (base == nullptr) {
    close(address.fd);
    return nullptr;
  }
  auto* header = reinterpret_cast<HeapHeader*>(base);
  std::memcpy(header->magic, kHeapMagic, sizeof kHeapMagic);
  header->nonce = address.nonce;
  return std::unique_ptr<Heap>(new Heap(base, address));
}

void* Heap::allocate(size_t bytes, Memory memory, int device) {
  const uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < bytes || rounded > address_.bytes) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto at = ranges_.take(rounded, kAlignment);
  if (!at) return nullptr;
  blocks_.emplace(*at, HeapBlock{*at, rounded, memory, device});
  used_ += rounded;
  return reinterpret_cast<void*>(*at);
}

bool Heap::free(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
  if (block == blocks_.end()) return false;
  const auto stale = ranges_.give(block->second.begin, block->second.bytes);
  used_ -= block->second.bytes;
  blocks_.erase(block);
  if (!stale) return true;
  const uint64_t base = reinterpret_cast<uintptr_t>(base_);
  const uint64_t begin = (stale->first - base + kPage - 1) / kPage * kPage;
  const uint64_t end = (stale->second - base) / kPage * kPage;
  if (begin < end)
    fallocate(address_.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
              static_cast<off_t>(end - begin));
  return true;
}

std::optional<HeapBlock> Heap::find(const void* pointer) const {
  if (!offset_of(pointer)) return std::nullopt;
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(mutex_);
  auto block = blocks_.upper_bound(at);
  if (block == blocks_.begin()) return std::nullopt;
  --block;
  if (at >= block->second.begin + block->second.bytes) return std::nullopt;
  return block->second;
}

std::optional<uint64_t> Heap::offset_of(const void* pointer) const {
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  const auto base = reinterpret_cast<uintptr_t>(base_);
  if (at < base || at >= base + address_.bytes) return std::nullopt;
  return at - base;
}

size_t Heap::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

PeerHeap::~PeerHeap() { munmap(base, bytes); }

std::shared_ptr<PeerHeap> map_peer_heap(const HeapAddress& address) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", address.pid, address.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  struct stat what {};
  const bool plausible =
      fstat(fd, &what) == 0 && S_ISREG(what.st_mode) && what.st_size == static_cast<off_t>(address.bytes);
  std::byte* base = plausible ? map_shared(fd, address.bytes) : nullptr;
  close(fd);
  if (base == nullptr) return nullptr;
  auto heap = std::make_shared<PeerHeap>(base, address.bytes);
  const auto* header = reinterpret_cast<const HeapHeader*>(base);
  if (std::memcmp(header->magic, kHeapMagic, sizeof kHeapMagic) != 0 || header->nonce != address.nonce) return nullptr;
  return heap;
}

}  // namespace lockstep::host
