// SPDX-License-Identifier: MIT
//
// See states.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/states.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/driver.h"
#include "interpose/shim/keep_errno.h"
#include "interpose/shim/recorder.h"

namespace lockstep::shim {

enum class ProbeState : uint32_t { free, filling, out, nothing };

struct ProbeRing;

struct Probe {
  std::atomic<ProbeState> state;
  uint32_t started;       // the first event was seen to be done
  void* before;
  void* after;
  uint64_t collectives;   // of the communicator, this operation included
  uint64_t messages;
  uint64_t collectives_before;
  uint64_t messages_before;
  ProbeRing* ring;
};

constexpr uint32_t kProbes = 256;
constexpr uint32_t kRings = trace::kCommSlots;

struct ProbeRing {
  std::atomic<uint32_t> lock;      // guards comm, and head among callers; held for a few stores, never while CUDA is called
  std::atomic<uint64_t> head;      // probes taken so far
  std::atomic<uint64_t> tail;      // probes answered so far
  std::atomic<uint32_t> used;      // 0 = may be given to a communicator
  Comm* comm;                      // nullptr = it has ended: what is out is dropped
  void* context;
  Probe probes[kProbes];
};

namespace {

constexpr unsigned kEventWithoutTiming = 2;
constexpr int kRelaxedCapture = 2;
constexpr long kBusyNs = 10 * 1000000, kIdleNs = 200 * 1000000;

std::atomic<ProbeRing*> rings[kRings];
std::atomic<uint32_t> ring_count, wanted, running, bell;

void lock(std::atomic<uint32_t>& word) {
  while (word.exchange(1, std::memory_order_acquire)) sched_yield();
}
void unlock(std::atomic<uint32_t>& word) { word.store(0, std::memory_order_release); }

void* context_of(const Driver& cuda, void* stream) {
  void* context = nullptr;
  if (stream && cuda.stream_context && cuda.stream_context(stream, &context) == kCudaSuccess && context) return context;
  return cuda.context_get(&context) == kCudaSuccess ? context : nullptr;
}

ProbeRing* new_ring() {
  void* space = mmap(nullptr, sizeof(ProbeRing), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return nullptr;
  auto* ring = static_cast<ProbeRing*>(space);
  for (Probe& probe : ring->probes) probe.ring = ring;
  ring->used.store(1, std::memory_order_relaxed);
  const uint32_t number = ring_count.load(std::memory_order_relaxed);
  if (number >= kRings) {
    munmap(space, sizeof(ProbeRing));
    return nullptr;
  }
  rings[number].store(ring, std::memory_order_release);
  ring_count.store(number + 1, std::memory_order_release);
  return ring;
}

// One that no communicator has any more and whose events are of this context, else a new one.
ProbeRing* take_ring(void* context) {
  static std::atomic<uint32_t> taking;
  lock(taking);
  ProbeRing* found = nullptr;
  const uint32_t count = ring_count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count && !found; i++) {
    ProbeRing* ring = rings[i].load(std::memory_order_relaxed);
    if (ring->used.load(std::memory_order_acquire) == 0 && ring->context == context) {
      ring->used.store(1, std::memory_order_relaxed);
      found = ring;
    }
  }
  if (!found) found = new_ring();
  if (found) found->context = context;
  unlock(taking);
  return found;
}

bool make_events(const Driver& cuda, Probe& probe, void* context) {
  if (probe.before && probe.after) return true;
  void* current = nullptr;
  cuda.context_get(&current);
  if (current != context && cuda.context_set(context) != kCudaSuccess) return false;
  int mode = kRelaxedCapture;  // making an event must not break another thread's capture
  cuda.exchange_capture_mode(&mode);
  if (!probe.before && cuda.event_create(&probe.before, kEventWithoutTiming) != kCudaSuccess) probe.before = nullptr;
  if (!probe.after && cuda.event_create(&probe.after, kEventWithoutTiming) != kCudaSuccess) probe.after = nullptr;
  cuda.exchange_capture_mode(&mode);
  if (current != context) cuda.context_set(current);
  return probe.before && probe.after;
}

uint64_t out_of(const ProbeRing& ring) {
  return ring.head.load(std::memory_order_relaxed) - ring.tail.load(std::memory_order_relaxed);
}

Probe* take_probe(ProbeRing& ring) {
  lock(ring.lock);
  const uint64_t head = ring.head.load(std::memory_order_relaxed);
  Probe* probe = nullptr;
  if (head - ring.tail.load(std::memory_order_acquire) < kProbes) {
    probe = &ring.probes[head % kProbes];
    probe->state.store(ProbeState::filling, std::memory_order_relaxed);
    ring.head.store(head + 1, std::memory_order_release);
  }
  unlock(ring.lock);
  return probe;
}

ProbeRing* ring_of(const Driver& cuda, Comm& comm, void* stream) {
  ProbeRing* ring = comm.probes.load(std::memory_order_acquire);
  if (ring) return ring;
  void* context = context_of(cuda, stream);
  if (!context) return nullptr;
  ring = take_ring(context);
  if (!ring) return nullptr;
  ProbeRing* none = nullptr;
  if (!comm.probes.compare_exchange_strong(none, ring, std::memory_order_acq_rel)) {
    ring->used.store(0, std::memory_order_release);  // another thread was faster
    return none;
  }
  lock(ring->lock);
  ring->comm = &comm;
  unlock(ring->lock);
  if (!wanted.load(std::memory_order_relaxed)) wanted.store(1, std::memory_order_relaxed);
  return ring;
}

// Those next in line are watched one by one: where a job is stuck, it is among them. Of those far behind some are enough
// to see that the line moves on.
bool is_worth_watching(uint64_t out, uint64_t number) {
  return out < kProbes / 2 || number % (out < kProbes * 3 / 4 ? 4 : 16) == 0;
}

// --- the driver thread ---------------------------------------------------------------------------------------------------------

bool done(const Driver& cuda, void* event) {
  trace::Status& status = *recorder.trace.status;
  status.driver_asked.store(stamp_now(recorder.tsc), std::memory_order_relaxed);
  const int answer = cuda.event_query(event);
  status.driver_answered.store(stamp_now(recorder.tsc), std::memory_order_relaxed);
  return answer == kCudaSuccess;
}

void raise_to(std::atomic<uint64_t>& count, uint64_t to) {
  const uint64_t now = count.load(std::memory_order_relaxed);
  if (now == UINT64_MAX || now < to) count.store(to, std::memory_order_relaxed);
}

enum class Reached { start, end };

void note(ProbeRing& ring, const Probe& probe, Reached what) {
  lock(ring.lock);
  if (ring.comm) {
    trace::CommSlot& slot = *ring.comm->slot;
    slot.moved_stamp.store(stamp_now(recorder.tsc), std::memory_order_relaxed);
    raise_to(slot.coll_started, probe.collectives);
    raise_to(slot.p2p_started, probe.messages);
    if (what == Reached::end) {
      raise_to(slot.coll_completed, probe.collectives);
      raise_to(slot.p2p_completed, probe.messages);
    } else if (probe.collectives_before == 0 && probe.messages_before == 0) {
      raise_to(slot.coll_completed, 0);  // the first of all: started, and nothing is complete
      raise_to(slot.p2p_completed, 0);
    }
  }
  unlock(ring.lock);
}

// Nothing has started yet on a communicator whose first operation waits behind other work.
void note_nothing(ProbeRing& ring, const Probe& probe) {
  if (probe.collectives_before != 0 || probe.messages_before != 0) return;
  lock(ring.lock);
  if (ring.comm)
    for (auto* count : {&ring.comm->slot->coll_started, &ring.comm->slot->coll_completed, &ring.comm->slot->p2p_started,
                        &ring.comm->slot->p2p_completed})
      raise_to(*count, 0);
  unlock(ring.lock);
}

// Answers what can be answered, in order. True when something is still out.
bool ask_ring(const Driver& cuda, ProbeRing& ring) {
  for (;;) {
    const uint64_t tail = ring.tail.load(std::memory_order_relaxed);
    if (tail == ring.head.load(std::memory_order_acquire)) return false;
    Probe& probe = ring.probes[tail % kProbes];
    const ProbeState state = probe.state.load(std::memory_order_acquire);
    if (state == ProbeState::filling) return true;
    if (state == ProbeState::out) {
      lock(ring.lock);
      const bool orphaned = !ring.comm;
      unlock(ring.lock);
      if (!orphaned) {
        if (!probe.started) {
          if (!done(cuda, probe.before)) {
            note_nothing(ring, probe);
            return true;
          }
          probe.started = 1;
          note(ring, probe, Reached::start);
        }
        if (!done(cuda, probe.after)) return true;
        note(ring, probe, Reached::end);
      }
    }
    probe.state.store(ProbeState::free, std::memory_order_relaxed);
    ring.tail.store(tail + 1, std::memory_order_release);
  }
}

bool ask_all(const Driver& cuda, void*& current) {
  bool out = false;
  const uint32_t count = ring_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; i++) {
    ProbeRing& ring = *rings[i].load(std::memory_order_acquire);
    // Acquired, since the ring's context was written before its first probe was taken.
    if (ring.head.load(std::memory_order_acquire) != ring.tail.load(std::memory_order_relaxed)) {
      if (current != ring.context && cuda.context_set(ring.context) == kCudaSuccess) current = ring.context;
      if (ask_ring(cuda, ring)) out = true;
    }
    lock(ring.lock);
    const bool idle = !ring.comm && ring.head.load(std::memory_order_relaxed) == ring.tail.load(std::memory_order_relaxed);
    unlock(ring.lock);
    if (idle && ring.used.load(std::memory_order_relaxed) == 2) ring.used.store(0, std::memory_order_release);
  }
  return out;
}

void* ask_the_driver(void*) {
  prctl(PR_SET_NAME, "lockstep-cuda");
  const Driver& cuda = *driver;
  int mode = kRelaxedCapture;  // a question must not break a capture that some thread has open
  cuda.exchange_capture_mode(&mode);
  void* current = nullptr;
  for (;;) {
    const uint32_t rung = bell.load(std::memory_order_relaxed);
    const bool out = ask_all(cuda, current);
    const struct timespec pause = {0, out ? kBusyNs : kIdleNs};
    syscall(SYS_futex, &bell, FUTEX_WAIT_PRIVATE, rung, &pause, nullptr, 0);
  }
  return nullptr;
}

}  // namespace

Probe* watch_start(Comm& comm, void* stream) {
  const KeepErrno keep;
  const Driver* cuda = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
  if (!cuda || !recorder.config.states) return nullptr;
  ProbeRing* ring = ring_of(*cuda, comm, stream);
  const uint64_t number =
      comm.slot->coll_returned.load(std::memory_order_relaxed) + comm.slot->p2p_returned.load(std::memory_order_relaxed);
  Probe* probe = ring && is_worth_watching(out_of(*ring), number) ? take_probe(*ring) : nullptr;
  if (!probe) {
    comm.slot->unwatched.fetch_add(1, std::memory_order_relaxed);
    bell.fetch_add(1, std::memory_order_relaxed);
    syscall(SYS_futex, &bell, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    return nullptr;
  }
  probe->started = 0;
  probe->collectives_before = comm.slot->coll_returned.load(std::memory_order_relaxed);
  probe->messages_before = comm.slot->p2p_returned.load(std::memory_order_relaxed);
  if (make_events(*cuda, *probe, ring->context) && cuda->event_record(probe->before, stream) == kCudaSuccess) return probe;
  probe->state.store(ProbeState::nothing, std::memory_order_release);
  comm.slot->unwatched.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

void watch_launched(Probe* probe, void* stream, bool launched, uint64_t collectives, uint64_t messages) {
  if (!probe) return;
  const KeepErrno keep;
  probe->collectives = collectives;
  probe->messages = messages;
  const bool out = launched && driver->event_record(probe->after, stream) == kCudaSuccess;
  probe->state.store(out ? ProbeState::out : ProbeState::nothing, std::memory_order_release);
}

void unwatch(Comm& comm) {
  ProbeRing* ring = comm.probes.exchange(nullptr, std::memory_order_acq_rel);
  if (!ring) return;
  lock(ring->lock);
  ring->comm = nullptr;
  unlock(ring->lock);
  ring->used.store(2, std::memory_order_release);  // the driver thread gives it free when nothing is out
}

void start_driver_thread() {
  if (!wanted.load(std::memory_order_relaxed) || running.exchange(1, std::memory_order_relaxed)) return;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 512 << 10);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, ask_the_driver, nullptr);  // all signals are blocked in the helper
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    recorder.config.states = false;
    recorder.trace.status->states.store(static_cast<uint32_t>(trace::StatesKnown::failed), std::memory_order_relaxed);
  }
}

void forget_states() {
  // The rings stay: their events are the parent's, and CUDA does not work in the child of a fork.
  for (auto& ring : rings) ring.store(nullptr, std::memory_order_relaxed);
  ring_count.store(0, std::memory_order_relaxed);
  wanted.store(0, std::memory_order_relaxed);
  running.store(0, std::memory_order_relaxed);
}

}  // namespace lockstep::shim
