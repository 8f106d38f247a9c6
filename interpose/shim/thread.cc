// SPDX-License-Identifier: MIT
//
// See thread.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/thread.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "interpose/shim/proc.h"

namespace lockstep::shim {

__thread ThreadState this_thread __attribute__((tls_model("initial-exec")));

namespace {

pthread_key_t exit_key;
bool have_key;
std::atomic<uint32_t> next_hint;

// Rests of blocks that threads left behind, for the next ones: else ten thousand short threads would fill the ring with
// nothing. A thread takes one before its first record only, so that its own numbers always grow.
constexpr unsigned kSpares = 64;
trace::Cursor spares[kSpares];
unsigned spare_count;
std::atomic<uint32_t> spare_lock;

bool try_spares() { return spare_lock.exchange(1, std::memory_order_acquire) == 0; }  // never waits: a spare is no need

void leave_block(trace::Cursor& cursor) {
  if (cursor.next != cursor.end && try_spares()) {
    if (spare_count < kSpares) {
      spares[spare_count++] = cursor;
      cursor = {};
    }
    spare_lock.store(0, std::memory_order_release);
  }
  trace::give_block_back(recorder.trace, cursor);
}

void find_block(trace::Cursor& cursor) {
  if (!try_spares()) return;
  if (spare_count > 0) cursor = spares[--spare_count];
  spare_lock.store(0, std::memory_order_release);
}

void free_slot(trace::ThreadSlot& slot) {
  slot.open_wait.store(0, std::memory_order_relaxed);
  slot.open_call.store(0, std::memory_order_relaxed);
  slot.state.store(0, std::memory_order_relaxed);
  slot.tid.store(0, std::memory_order_release);  // the marks stay: they may still be the process's latest
}

// A thread may call NCCL again from a later destructor; it is then registered anew, and this runs again.
void leave(void* state) {
  auto& thread = *static_cast<ThreadState*>(state);
  if (thread.epoch == recorder.epoch.load(std::memory_order_relaxed) + 1) {
    if (thread.slot) free_slot(*thread.slot);
    leave_block(thread.cursor);
  }
  thread.cursor = {};
  if (thread.members) munmap(thread.members, thread.member_room * sizeof(GroupMember));
  if (thread.front) munmap(thread.front, thread.front_size);
  thread.front = nullptr;
  thread.members = nullptr;
  thread.member_count = thread.member_room = 0;
  thread.slot = nullptr;
  thread.epoch = 0;
}

void clear(trace::ThreadSlot& slot) {
  slot.cpu_ns.store(0, std::memory_order_relaxed);
  slot.open_stamp.store(0, std::memory_order_relaxed);
  constexpr char kNone[16] = {};
  put_name(slot, kNone);
  trace::open_seqlock(slot.marks.lock);
  slot.marks.bits = 0;
  trace::close_seqlock(slot.marks.lock);
}

uint16_t claim_slot(uint32_t tid) {
  const uint32_t start = next_hint.fetch_add(1, std::memory_order_relaxed);
  const uint32_t latest = recorder.trace.status->process_marks.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < trace::kThreadSlots; i++) {
    const uint32_t number = (start + i) % trace::kThreadSlots;
    trace::ThreadSlot& slot = recorder.trace.threads[number];
    if (number + 1 == latest) continue;  // holds the process's latest marks
    uint32_t free = 0;
    if (slot.tid.load(std::memory_order_relaxed) != 0) continue;
    if (!slot.tid.compare_exchange_strong(free, tid, std::memory_order_acq_rel)) continue;
    clear(slot);
    return static_cast<uint16_t>(number);
  }
  return trace::kThreadSlots;
}

}  // namespace

void register_thread(ThreadState& thread) {
  if (!recording()) return;
  // Depth, group and marks are the thread's own and stay; all that belongs to a trace is new.
  thread.tid = own_tid();
  thread.slot_number = claim_slot(thread.tid);
  thread.slot = thread.slot_number < trace::kThreadSlots ? &recorder.trace.threads[thread.slot_number] : nullptr;
  thread.cached_handle = 0;
  thread.cached_comm = nullptr;
  thread.member_count = 0;
  thread.cursor = {};
  if (thread.registered != recorder.epoch.load(std::memory_order_relaxed) + 1) find_block(thread.cursor);
  thread.registered = recorder.epoch.load(std::memory_order_relaxed) + 1;
  thread.epoch = recorder.epoch.load(std::memory_order_relaxed) + 1;
  pthread_setspecific(exit_key, &thread);
}

bool start_threads() {
  if (!have_key) have_key = pthread_key_create(&exit_key, leave) == 0;
  return have_key;
}

void forget_threads() {
  spare_count = 0;
  spare_lock.store(0, std::memory_order_relaxed);
  // Only the thread that forked lives on. Its group is NCCL's state, not ours, and was inherited with it.
  this_thread.epoch = 0;
  this_thread.slot = nullptr;
  this_thread.cached_handle = 0;
  this_thread.cached_comm = nullptr;
  this_thread.member_count = 0;
  this_thread.depth = 0;
}

bool add_member(ThreadState& thread, const GroupMember& member) {
  if (thread.member_count == thread.member_room) {
    const uint32_t room = thread.member_room ? thread.member_room * 2 : 4096 / sizeof(GroupMember);
    void* space = thread.members ? mremap(thread.members, thread.member_room * sizeof(GroupMember),
                                          room * sizeof(GroupMember), MREMAP_MAYMOVE)
                                 : mmap(nullptr, room * sizeof(GroupMember), PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return false;
    thread.members = static_cast<GroupMember*>(space);
    thread.member_room = room;
  }
  thread.members[thread.member_count++] = member;
  return true;
}

// By whole words, since the helper may write a name while the slot passes from one thread to another.
void put_name(trace::ThreadSlot& slot, const char (&name)[16]) {
  uint64_t words[2];
  memcpy(words, name, sizeof words);
  auto* to = reinterpret_cast<uint64_t*>(slot.name);
  for (int i = 0; i < 2; i++) __atomic_store_n(to + i, words[i], __ATOMIC_RELAXED);
}

void reclaim_slot(unsigned number, uint32_t tid) {
  trace::ThreadSlot& slot = recorder.trace.threads[number];
  slot.open_call.store(0, std::memory_order_relaxed);
  slot.open_wait.store(0, std::memory_order_relaxed);
  slot.tid.compare_exchange_strong(tid, 0, std::memory_order_acq_rel);
}

}  // namespace lockstep::shim
