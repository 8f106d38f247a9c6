// SPDX-License-Identifier: MIT
//
// What the shim knows of the calling thread. One small block of thread-local memory, addressed without a call
// (initial-exec), and one slot in the trace's fixed area while the thread lives. When all slots are taken a thread has
// none, shares none, and still records.

#pragma once

#include <cstdint>

#include "interpose/shim/digest_job.h"
#include "interpose/trace/format.h"
#include "interpose/trace/writer.h"

namespace lockstep::shim {

struct Comm;

// A member of the group the thread has open: what to give back if the group fails, or which communicator it makes.
struct GroupMember {
  Comm* comm;
  std::atomic<uint64_t>* called;    // counters to take back; nullptr for an init call
  std::atomic<uint64_t>* returned;
  std::atomic<uint64_t>* edge;      // of a p2p call, else nullptr
  void** new_handle;                // of an init call, else nullptr
  uint64_t event;                   // of the call, plus one
  uint64_t stream;                  // of an operation
  bool watchable;                   // its stream is not capturing
  struct Probe* probe;              // of the first member on its communicator: see states.h
  bool digested;                    // the digests of its buffers are wanted
  DigestJob digest;
};

// A hooked call inside another is passed on unrecorded, but for NCCL called while the thread waits in a host call: a
// signal handler that aborts a communicator does that.
enum Depth : uint16_t { kOutside = 0, kInRecorder = 1, kInHostCall = 2 };

struct ThreadState {
  uint32_t tid;              // 0 = not seen yet
  uint32_t epoch;            // of the recorder when it was seen, plus one
  uint16_t slot_number;      // trace::kThreadSlots = none
  uint16_t mark_bits;        // trace::MarkBits; beside the number, as they are in a record
  uint16_t depth;            // Depth: which hooked call it is in
  uint32_t group_depth;      // ncclGroupStart calls that are open
  trace::ThreadSlot* slot;   // nullptr = none
  uint64_t step;
  uint32_t group;            // number of the outermost one
  uint64_t cached_handle;    // the communicator found last
  uint32_t cached_epoch;
  uint32_t nested_id_known;
  Comm* cached_comm;
  uint64_t nested_id;        // hash of the id that NCCL made for itself inside the call this thread is in
  GroupMember* members;      // mapped, grows
  uint32_t member_count, member_room;
  uint64_t comm_calls;       // NCCL operations it made
  trace::Cursor cursor;      // where it writes
  void* front;               // FrontState, mapped
  size_t front_size;
  uint32_t registered;       // as epoch, but kept when the thread is leaving: it was here before
};
extern __thread ThreadState this_thread __attribute__((tls_model("initial-exec")));

void register_thread(ThreadState& thread);
inline ThreadState& known_thread();

bool start_threads();                      // once a process
void forget_threads();                     // in the child of a fork
bool add_member(ThreadState& thread, const GroupMember& member);
void put_name(trace::ThreadSlot& slot, const char (&name)[16]);
void reclaim_slot(unsigned number, uint32_t tid);  // the helper, for a thread that is gone

}  // namespace lockstep::shim

#include "interpose/shim/recorder.h"

namespace lockstep::shim {
inline ThreadState& known_thread() {
  ThreadState& thread = this_thread;
  if (__builtin_expect(thread.epoch != recorder.epoch.load(std::memory_order_relaxed) + 1, 0)) register_thread(thread);
  return thread;
}
}  // namespace lockstep::shim
