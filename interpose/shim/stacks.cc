// SPDX-License-Identifier: MIT
//
// See stacks.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/stacks.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>

#include "interpose/shim/keep_errno.h"
#include "interpose/shim/real.h"
#include "interpose/shim/recorder.h"
#include "interpose/trace/writer.h"

namespace lockstep::shim {

std::atomic<Backtrace> backtrace_function;

namespace {

// Open addressing; an entry is claimed by storing its hash, and of use once its reference is there.
struct Entry {
  std::atomic<uint64_t> hash;
  std::atomic<uint32_t> ref;
  uint32_t reserved;
};
constexpr uint64_t kEntries = 1u << 17;  // more stacks than the arena holds
constexpr uint64_t kProbes = 32;
constexpr uint32_t kNoRoom = UINT32_MAX;
std::atomic<Entry*> table;

uint64_t hash_of(void* const* pcs, int depth) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ull, kOther = 0xc2b2ae3d27d4eb4full;
  uint64_t lane[4] = {static_cast<uint64_t>(depth), 1, 2, 3};
  int i = 0;
  for (; i + 4 <= depth; i += 4)
    for (int k = 0; k < 4; k++) {
      lane[k] = (lane[k] ^ reinterpret_cast<uint64_t>(pcs[i + k])) * kOdd;
      lane[k] ^= lane[k] >> 32;
    }
  for (; i < depth; i++) {
    lane[i & 3] = (lane[i & 3] ^ reinterpret_cast<uint64_t>(pcs[i])) * kOdd;
    lane[i & 3] ^= lane[i & 3] >> 32;
  }
  uint64_t sum = lane[0];
  for (int k = 1; k < 4; k++) {
    sum = (sum + lane[k]) * kOther;
    sum ^= sum >> 29;
  }
  return sum | 1;  // 0 is a free entry
}

uint32_t store_stack(void* const* pcs, int depth, bool cut, uint64_t hash) {
  using trace::StackBody;
  const size_t size = sizeof(StackBody) + static_cast<size_t>(depth) * 8;
  trace::ArenaHeader* header = trace::arena_reserve(recorder.trace, trace::ArenaKind::stack, size);
  if (!header) return kNoRoom;
  auto* body = static_cast<StackBody*>(trace::arena_body(header));
  body->hash = hash;
  body->depth = static_cast<uint32_t>(depth);
  body->flags = cut ? 1 : 0;
  memcpy(reinterpret_cast<char*>(body) + sizeof(StackBody), pcs, static_cast<size_t>(depth) * 8);
  trace::arena_commit(header);
  return trace::arena_ref(recorder.trace, header);
}

trace::StackRef intern(void* const* pcs, int depth, bool cut) {
  Entry* entries = table.load(std::memory_order_relaxed);
  const uint64_t hash = hash_of(pcs, depth);
  for (uint64_t i = 0; i < kProbes; i++) {
    Entry& entry = entries[(hash + i) & (kEntries - 1)];
    uint64_t found = entry.hash.load(std::memory_order_acquire);
    if (found == 0 && entry.hash.compare_exchange_strong(found, hash, std::memory_order_acq_rel)) {
      const uint32_t ref = store_stack(pcs, depth, cut, hash);
      entry.ref.store(ref, std::memory_order_release);
      return ref == kNoRoom ? 0 : ref;
    }
    if (found != hash) continue;
    uint32_t ref = entry.ref.load(std::memory_order_acquire);
    if (ref == 0) ref = store_stack(pcs, depth, cut, hash);  // another thread is storing it: rather twice than wait
    return ref == kNoRoom ? 0 : ref;
  }
  recorder.trace.status->arena_dropped.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

}  // namespace

const char* start_stacks() {
  if (!table.load(std::memory_order_relaxed)) {
    void* space = mmap(nullptr, kEntries * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return "no memory for the table of stacks";
    table.store(static_cast<Entry*>(space), std::memory_order_release);
  }
  if (backtrace_function.load(std::memory_order_relaxed)) return nullptr;
  void* library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
  if (!library) return "libunwind.so.8 could not be loaded";
  const auto found = reinterpret_cast<Backtrace>(find_symbol(library, "unw_backtrace"));
  if (!found) return "libunwind.so.8 has no unw_backtrace";
  backtrace_function.store(found, std::memory_order_release);
  return nullptr;
}

trace::StackRef walk_stack(Backtrace walk) {
  const KeepErrno keep;
  constexpr int kOwn = 4;  // more frames than this library ever has on top
  void* pcs[kMostFrames + kOwn];
  int depth = walk(pcs, kMostFrames + kOwn);
  if (depth <= 0) return 0;
  const bool cut = depth == kMostFrames + kOwn;
  int first = 0;
  while (first < depth && inside(own_code, reinterpret_cast<uintptr_t>(pcs[first]))) first++;
  depth -= first;
  if (depth == 0) return 0;
  return intern(pcs + first, depth < kMostFrames ? depth : kMostFrames, cut || depth > kMostFrames);
}

void forget_stacks() {
  // A fresh table rather than a cleared one: the old pages may be shared with the parent, and are the child's to drop.
  if (Entry* old = table.exchange(nullptr, std::memory_order_relaxed)) munmap(old, kEntries * sizeof(Entry));
}

}  // namespace lockstep::shim
