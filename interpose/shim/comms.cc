// SPDX-License-Identifier: MIT
//
// See comms.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/comms.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/abi/nccl.h"
#include "interpose/shim/clock.h"
#include "interpose/shim/driver.h"
#include "interpose/shim/keep_errno.h"
#include "interpose/shim/real.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/states.h"
#include "interpose/trace/writer.h"

namespace lockstep::shim {

std::atomic<uint32_t> comm_epoch;
std::atomic<uint32_t> living_comms;

void Hold::wait() { sched_yield(); }

namespace {
constexpr int kBarrier = 8, kRegisterForBarrier = 16;  // MEMBARRIER_CMD_(REGISTER_)PRIVATE_EXPEDITED
bool have_barriers;
}  // namespace

bool prepare_barriers() {
  have_barriers = syscall(SYS_membarrier, kRegisterForBarrier, 0, 0) == 0;
  return have_barriers;
}

void lock_numbers(Comm& comm) {
  const KeepErrno keep;
  while (comm.numbering.exchange(1, std::memory_order_acquire) != 0) sched_yield();
  if (comm.shared.load(std::memory_order_relaxed)) return;
  const void* nobody = nullptr;
  if (have_barriers && comm.user.compare_exchange_strong(nobody, &this_thread, std::memory_order_acq_rel)) return;
  if (comm.user.load(std::memory_order_relaxed) == nullptr) return;  // no barriers: nobody ever goes without the lock
  comm.shared.store(1, std::memory_order_relaxed);
  syscall(SYS_membarrier, kBarrier, 0, 0);
  while (comm.busy.load(std::memory_order_acquire)) sched_yield();
}

namespace {

using trace::CommState;

constinit Comm comms[trace::kCommSlots] = {};

// Handles to communicators, open addressing. Readers take no lock: they may miss an entry that is being moved, and then
// ask again under the lock.
struct Entry {
  std::atomic<uint64_t> handle;  // 0 = never used: a search ends here. 1 = removed
  std::atomic<Comm*> comm;
};
constexpr uint32_t kEntries = 4096;
constexpr uint64_t kRemoved = 1;
constinit Entry table[kEntries] = {};

std::atomic<uint32_t> registry;  // guards comms' allocation and the table's writers

uint32_t place_of(uint64_t handle) { return static_cast<uint32_t>((handle >> 4) * 0x9e3779b97f4a7c15ull >> 52); }
static_assert(kEntries == 1u << 12);

Entry* entry_of(uint64_t handle) {
  for (uint32_t i = 0; i < kEntries; i++) {
    Entry& entry = table[(place_of(handle) + i) % kEntries];
    const uint64_t found = entry.handle.load(std::memory_order_acquire);
    if (found == handle) return &entry;
    if (found == 0) return nullptr;
  }
  return nullptr;
}

// As long as its handle is good for any call.
bool is_living(uint32_t state) {
  switch (static_cast<CommState>(state)) {
    case CommState::initialising:
    case CommState::live:
    case CommState::finalized:
    case CommState::revoked: return true;
    default: return false;
  }
}

void forget_users(Comm& comm) {
  comm.shared.store(0, std::memory_order_relaxed);
  comm.busy.store(0, std::memory_order_relaxed);
  comm.user.store(nullptr, std::memory_order_release);
}

void drop_edges(Comm& comm) {
  if (auto* edges = comm.edges.exchange(nullptr, std::memory_order_relaxed))
    munmap(edges, static_cast<size_t>(comm.edge_ranks) * 2 * sizeof(uint64_t));
}

// A free slot, else the one whose communicator ended first: the living matter more than the dead.
Comm* take_slot() {
  Comm* oldest = nullptr;
  for (Comm& comm : comms) {
    if (comm.serial == 0) return &comm;
    const bool ended = !is_living(comm.slot->state.load(std::memory_order_relaxed));
    if (ended && (!oldest || comm.slot->ended_stamp < oldest->slot->ended_stamp)) oldest = &comm;
  }
  recorder.trace.status->comms_dropped.fetch_add(1, std::memory_order_relaxed);
  if (oldest) {
    drop_edges(*oldest);
    unwatch(*oldest);
  }
  return oldest;
}

uint32_t generation_of(uint64_t id, int32_t rank) {
  uint32_t generation = 0;
  for (const Comm& comm : comms)
    if (comm.serial && id && comm.slot->id == id && comm.slot->rank == rank && comm.slot->generation >= generation)
      generation = comm.slot->generation + 1;
  return generation;
}

// The device of the calling thread, by which two ranks on one device are known although NCCL makes no communicator of
// them.
int32_t device_now() {
  const Driver* cuda = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
  int device = -1;
  return cuda && cuda->context_device && cuda->context_device(&device) == kCudaSuccess ? device : -1;
}

void fill(trace::CommSlot& slot, const NewComm& spec, uint32_t tid) {
  slot.serial.store(0, std::memory_order_release);
  slot.state.store(static_cast<uint32_t>(CommState::initialising), std::memory_order_relaxed);
  slot.generation = spec.parent ? spec.parent->slot->generation : generation_of(spec.id, spec.rank);
  slot.id = spec.id;
  slot.parent_id = spec.parent ? spec.parent->slot->id : 0;
  slot.parent_serial = spec.parent ? spec.parent->serial : 0;
  slot.rank = spec.rank;
  slot.nranks = spec.nranks;
  slot.device = device_now();
  slot.creator_tid = tid;
  slot.handle = 0;
  slot.created_stamp = spec.stamp;
  slot.ready_stamp = slot.ended_stamp = 0;
  slot.color = spec.color;
  slot.key = spec.key;
  slot.split_count = spec.split_count;
  slot.life_seq = 0;
  trace::put_text(slot.name, sizeof slot.name, spec.name, spec.name ? strnlen(spec.name, sizeof slot.name) : 0);
  slot.coll_called.store(0, std::memory_order_relaxed);
  slot.coll_returned.store(0, std::memory_order_relaxed);
  slot.coll_started.store(UINT64_MAX, std::memory_order_relaxed);
  slot.coll_completed.store(UINT64_MAX, std::memory_order_relaxed);
  slot.p2p_called.store(0, std::memory_order_relaxed);
  slot.p2p_returned.store(0, std::memory_order_relaxed);
  slot.recent_next.store(0, std::memory_order_relaxed);
  slot.p2p_started.store(UINT64_MAX, std::memory_order_relaxed);
  slot.p2p_completed.store(UINT64_MAX, std::memory_order_relaxed);
  slot.last_stream.store(0, std::memory_order_relaxed);
  slot.captured.store(0, std::memory_order_relaxed);
  slot.blind.store(0, std::memory_order_relaxed);
  slot.unwatched.store(0, std::memory_order_relaxed);
  slot.moved_stamp.store(0, std::memory_order_relaxed);
  slot.coll_unstarted.store(0, std::memory_order_relaxed);
  slot.config = spec.config;
  for (trace::CallSummary& call : slot.recent) call.event.store(0, std::memory_order_relaxed);
}

}  // namespace

Comm* look_up(uint64_t handle, ThreadState& thread) {
  if (handle <= kRemoved) return nullptr;
  const uint32_t epoch = comm_epoch.load(std::memory_order_acquire);
  Entry* entry = entry_of(handle);
  if (!entry) {
    const Hold hold(registry);
    entry = entry_of(handle);
  }
  Comm* comm = entry ? entry->comm.load(std::memory_order_acquire) : nullptr;
  if (!comm) return nullptr;
  thread.cached_handle = handle;
  thread.cached_comm = comm;
  thread.cached_epoch = epoch;
  return comm;
}

uint32_t next_serials(uint32_t count) {
  return static_cast<uint32_t>(recorder.trace.status->comms_created.fetch_add(count, std::memory_order_relaxed)) + 1;
}

Comm* find_serial(uint32_t serial) {
  for (Comm& comm : comms)
    if (comm.serial == serial && serial != 0) return &comm;
  return nullptr;
}

Comm* find_id(uint64_t id) {
  for (Comm& comm : comms)
    if (comm.serial != 0 && comm.slot->id == id && is_living(comm.slot->state.load(std::memory_order_relaxed)))
      return &comm;
  return nullptr;
}

Comm* create_comm(const NewComm& spec, uint32_t serial) {
  const Hold hold(registry);
  Comm* comm = take_slot();
  if (!comm) return nullptr;
  comm->slot = &recorder.trace.comms[comm - comms];
  comm->children.store(0, std::memory_order_relaxed);
  comm->asked = 0;
  forget_users(*comm);
  comm->copy = spec.copy;
  fill(*comm->slot, spec, this_thread.tid);
  comm->serial = serial;
  comm->slot->serial.store(serial, std::memory_order_release);
  living_comms.fetch_add(1, std::memory_order_relaxed);
  return comm;
}

void set_id(Comm& comm, uint64_t id) {
  const Hold hold(registry);
  comm.slot->generation = generation_of(id, comm.slot->rank);
  comm.slot->id = id;
}

void add_handle(Comm& comm, uint64_t handle) {
  if (handle <= kRemoved) return;
  const Hold hold(registry);
  comm.slot->handle = handle;
  Entry* entry = entry_of(handle);
  for (uint32_t i = 0; !entry && i < kEntries; i++) {
    Entry& candidate = table[(place_of(handle) + i) % kEntries];
    if (candidate.handle.load(std::memory_order_relaxed) <= kRemoved) entry = &candidate;
  }
  if (!entry) return;  // cannot be: there are more entries than communicators
  entry->comm.store(&comm, std::memory_order_release);
  entry->handle.store(handle, std::memory_order_release);
  comm_epoch.fetch_add(1, std::memory_order_release);
}

void remove_handle(uint64_t handle) {
  const Hold hold(registry);
  Entry* entry = entry_of(handle);
  if (!entry) return;
  const Entry& next = table[static_cast<uint32_t>(entry - table + 1) % kEntries];
  entry->comm.store(nullptr, std::memory_order_release);
  entry->handle.store(next.handle.load(std::memory_order_relaxed) == 0 ? 0 : kRemoved, std::memory_order_release);
  comm_epoch.fetch_add(1, std::memory_order_release);
}

void set_state(Comm& comm, CommState state, uint64_t stamp) {
  const uint32_t old = comm.slot->state.exchange(static_cast<uint32_t>(state), std::memory_order_relaxed);
  if (state == CommState::live && comm.slot->ready_stamp == 0) comm.slot->ready_stamp = stamp;
  if (is_living(old) && !is_living(static_cast<uint32_t>(state))) living_comms.fetch_sub(1, std::memory_order_relaxed);
  if (!is_living(old) && is_living(static_cast<uint32_t>(state))) living_comms.fetch_add(1, std::memory_order_relaxed);
  if (state == CommState::failed) comm.slot->ended_stamp = stamp;
}

void ask_nccl(Comm& comm) {
  if (comm.asked) return;
  comm.asked = 1;
  const auto handle = reinterpret_cast<ncclComm_t>(comm.slot->handle);
  using Ask = ncclResult_t (*)(ncclComm_t, int*);
  const auto ask = [&](abi::Fn fn, int32_t& to) {
    const auto real = real_as<Ask>(comm.copy, fn);
    int value;
    if (real && real(handle, &value) == ncclSuccess) to = value;
  };
  if (comm.slot->rank < 0) ask(abi::Fn::CommUserRank, comm.slot->rank);
  if (comm.slot->nranks < 0) ask(abi::Fn::CommCount, comm.slot->nranks);
  ask(abi::Fn::CommCuDevice, comm.slot->device);
}

void name_comm(Comm& comm, const char* name, size_t length) {
  const Hold hold(comm.marking);
  trace::put_text(comm.slot->name, sizeof comm.slot->name, name, length);
}

std::atomic<uint64_t>* edge_counter(Comm& comm, int32_t peer, bool sending) {
  auto* edges = comm.edges.load(std::memory_order_acquire);
  if (__builtin_expect(!edges, 0)) {
    const Hold hold(registry);
    edges = comm.edges.load(std::memory_order_acquire);
    if (!edges) {
      if (comm.slot->nranks <= 0) return nullptr;
      comm.edge_ranks = comm.slot->nranks;
      void* space = mmap(nullptr, static_cast<size_t>(comm.edge_ranks) * 2 * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (space == MAP_FAILED) return nullptr;
      edges = static_cast<std::atomic<uint64_t>*>(space);
      comm.edges.store(edges, std::memory_order_release);
    }
  }
  if (peer < 0 || peer >= comm.edge_ranks) return nullptr;
  return &edges[sending ? peer : comm.edge_ranks + peer];
}

void forget_comms() {
  registry.store(0, std::memory_order_relaxed);
  for (Comm& comm : comms) {
    comm.serial = 0;
    comm.edges.store(nullptr, std::memory_order_relaxed);  // the mapping stays: pages shared with the parent
    comm.marking.store(0, std::memory_order_relaxed);
    comm.numbering.store(0, std::memory_order_relaxed);
    forget_users(comm);
    comm.probes.store(nullptr, std::memory_order_relaxed);
  }
  for (Entry& entry : table) {
    entry.handle.store(0, std::memory_order_relaxed);
    entry.comm.store(nullptr, std::memory_order_relaxed);
  }
  living_comms.store(0, std::memory_order_relaxed);
  comm_epoch.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lockstep::shim
