// SPDX-License-Identifier: MIT
//
// Communicators: from NCCL's handle, which is reused, to an identity that is equal on all ranks and never reused.
//
// Making and ending communicators is rare and takes a lock; finding one is in every call and takes none: a table from
// handle to communicator with one remembered answer a thread. NCCL itself is asked nothing while a communicator is in
// the making, since it might block; rank and size come from the init call's own arguments.

#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/shim/thread.h"
#include "interpose/trace/format.h"

namespace lockstep::shim {

struct Comm {
  trace::CommSlot* slot;             // in the trace's fixed area
  uint32_t serial;                   // 0 = free
  std::atomic<uint32_t> children;    // splits and shrinks of it so far
  std::atomic<std::atomic<uint64_t>*> edges;  // next p2p number to each peer, then from each peer; made by the first p2p call
  int32_t edge_ranks;
  unsigned copy;                     // of libnccl it belongs to; see copies.h
  std::atomic<struct ProbeRing*> probes;  // see states.h; nullptr until the first operation that is watched
  uint32_t asked;                    // NCCL was asked for rank, size and device
  std::atomic<uint32_t> marking;     // held, yielding, while the name is written
  // Guards the numbers; see HoldNumbers.
  std::atomic<uint32_t> numbering;   // held, yielding
  std::atomic<uint32_t> shared;      // 1 = more than one thread calls on it
  std::atomic<uint32_t> busy;        // its one thread is at the numbers
  std::atomic<const void*> user;     // its one thread; nullptr = nobody yet
};

// A lock that is held for a few stores. The thread in it may be put aside: then others yield.
class Hold {
 public:
  explicit Hold(std::atomic<uint32_t>& word) : word_(word) {
    while (__builtin_expect(word_.exchange(1, std::memory_order_acquire) != 0, 0)) wait();
  }
  ~Hold() { word_.store(0, std::memory_order_release); }

 private:
  static void wait();
  std::atomic<uint32_t>& word_;
};

// The lock of a communicator's numbers. Most communicators are called on by one thread for all their life: that thread
// says that it is at the numbers by a plain store and looks whether somebody else has come. A second thread, when it
// comes for the first time, says so, makes the kernel run a barrier on all processors (membarrier), waits until the
// first is done, and from then on all take the lock. Where the kernel has no membarrier all take it always.
inline bool own_numbers(Comm& comm) {
  if (__builtin_expect(comm.user.load(std::memory_order_relaxed) != &this_thread, 0)) return false;
  comm.busy.store(1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (__builtin_expect(comm.shared.load(std::memory_order_relaxed) == 0, 1)) return true;
  comm.busy.store(0, std::memory_order_release);
  return false;
}
void lock_numbers(Comm& comm);

class HoldNumbers {
 public:
  explicit HoldNumbers(Comm& comm) : held_(own_numbers(comm) ? &comm.busy : &comm.numbering) {
    if (held_ == &comm.numbering) lock_numbers(comm);
  }
  ~HoldNumbers() { held_->store(0, std::memory_order_release); }

 private:
  std::atomic<uint32_t>* held_;
};

// The same for the hot path: `change` stands there twice, so that the usual case is a straight line.
template <class Change>
__attribute__((always_inline)) inline void with_numbers(Comm& comm, Change change) {
  if (__builtin_expect(own_numbers(comm), 1)) {
    change();
    comm.busy.store(0, std::memory_order_release);
  } else {
    lock_numbers(comm);
    change();
    comm.numbering.store(0, std::memory_order_release);
  }
}
bool prepare_barriers();  // once, when recording starts

// A counter that is only changed under a lock: readers outside see whole values, and changing it costs no locked
// instruction.
inline uint64_t add_to(std::atomic<uint64_t>& counter, uint64_t by) {
  const uint64_t old = counter.load(std::memory_order_relaxed);
  counter.store(old + by, std::memory_order_relaxed);
  return old;
}

struct NewComm {
  uint64_t id = 0;
  const Comm* parent = nullptr;
  int32_t rank = -1, nranks = -1, color = INT32_MIN, key = 0;
  uint32_t split_count = 0;
  const char* name = nullptr;
  trace::CommConfig config = {};
  unsigned copy = 0;                 // of libnccl it belongs to
  uint64_t stamp = 0;
};

extern std::atomic<uint32_t> comm_epoch;     // changes with every handle added or removed
extern std::atomic<uint32_t> living_comms;   // those whose handle is good for a call
Comm* look_up(uint64_t handle, ThreadState& thread);

inline Comm* find_comm(uint64_t handle, ThreadState& thread) {
  if (thread.cached_handle == handle && thread.cached_epoch == comm_epoch.load(std::memory_order_acquire))
    return thread.cached_comm;
  return look_up(handle, thread);
}

Comm* create_comm(const NewComm& spec, uint32_t serial);  // nullptr when no slot is left, which is counted
uint32_t next_serials(uint32_t count);                    // the first of them
Comm* find_serial(uint32_t serial);                       // slow
Comm* find_id(uint64_t id);                               // slow: a living one
void set_id(Comm& comm, uint64_t id);                     // for ncclCommInitAll, which learns it late
void add_handle(Comm& comm, uint64_t handle);
void remove_handle(uint64_t handle);
void set_state(Comm& comm, trace::CommState state, uint64_t stamp);
// Rank, size and device from NCCL, once, of a communicator that is known to be ready.
void ask_nccl(Comm& comm);
void name_comm(Comm& comm, const char* name, size_t length);

// Counter of the p2p calls to (sending) or from a peer; nullptr when the peer is out of range or memory is short.
std::atomic<uint64_t>* edge_counter(Comm& comm, int32_t peer, bool sending);

void forget_comms();  // in the child of a fork

}  // namespace lockstep::shim
