// SPDX-License-Identifier: MIT
//
// See states.h: the side of the threads that make calls. They take a probe and record its events.

#include "interpose/shim/libc.h"

#include "interpose/shim/states.h"

#include <sys/mman.h>

#include "interpose/shim/driver.h"
#include "interpose/shim/keep_errno.h"
#include "interpose/shim/probes.h"
#include "interpose/shim/recorder.h"

namespace lockstep::shim {

Rings rings;

namespace {

constexpr unsigned kEventWithoutTiming = 2;

void* context_of(const Driver& cuda, void* stream) {
  void* context = nullptr;
  if (stream && cuda.stream_context && cuda.stream_context(stream, &context) == kCudaSuccess && context) return context;
  return cuda.context_get(&context) == kCudaSuccess ? context : nullptr;
}

ProbeRing* new_ring() {
  void* space = mmap(nullptr, sizeof(ProbeRing), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return nullptr;
  auto* ring = static_cast<ProbeRing*>(space);
  ring->used.store(1, std::memory_order_relaxed);
  const uint32_t number = rings.count.load(std::memory_order_relaxed);
  if (number >= kRings) {
    munmap(space, sizeof(ProbeRing));
    return nullptr;
  }
  rings.at[number].store(ring, std::memory_order_release);
  rings.count.store(number + 1, std::memory_order_release);
  return ring;
}

// One that no communicator has any more and whose events are of this context, else a new one.
ProbeRing* take_ring(void* context) {
  static std::atomic<uint32_t> taking;
  lock(taking);
  ProbeRing* found = nullptr;
  const uint32_t count = rings.count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count && !found; i++) {
    ProbeRing* ring = rings.at[i].load(std::memory_order_relaxed);
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

void arm(Probe& probe, bool has_earlier) {
  probe.state.store(ProbeState::filling, std::memory_order_relaxed);
  probe.turn++;
  probe.started = false;
  probe.has_earlier = has_earlier;
}

Probe* take_probe(ProbeRing& ring) {
  lock(ring.lock);
  const uint64_t head = ring.head.load(std::memory_order_relaxed);
  Probe* probe = nullptr;
  if (head - ring.tail.load(std::memory_order_relaxed) < kProbes) {
    probe = &ring.probes[head % kProbes];
    arm(*probe, false);
    ring.head.store(head + 1, std::memory_order_release);
  }
  unlock(ring.lock);
  return probe;
}

// The probe of the newest watched operation, for a newer one. A job that makes its calls faster than the driver thread
// asks for them would else be blind for the last of them, which is the one it hangs at. The event behind the operation
// it is taken from stays: without it nobody could tell whether the newer one waits for that or for something else.
Probe* take_newest(ProbeRing& ring) {
  lock(ring.lock);
  const uint64_t head = ring.head.load(std::memory_order_relaxed);
  Probe* probe = &ring.probes[(head - 1) % kProbes];
  const ProbeState state = probe->state.load(std::memory_order_relaxed);
  if (head == ring.tail.load(std::memory_order_relaxed) || state == ProbeState::filling || state == ProbeState::free) {
    probe = nullptr;
  } else {
    if (state == ProbeState::out) {
      void* spare = probe->earlier;
      probe->earlier = probe->after;
      probe->after = spare;
      probe->counts_earlier = probe->counts;
    }
    arm(*probe, state == ProbeState::out);
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
  if (!rings.wanted.load(std::memory_order_relaxed)) rings.wanted.store(1, std::memory_order_relaxed);
  return ring;
}

// Those next in line are watched one by one: where a job is stuck, it is among them. Of those far behind some are
// enough to see that the line moves on.
bool is_worth_watching(uint64_t out, uint64_t number) {
  return out < kProbes / 2 || number % (out < kProbes * 3 / 4 ? 4 : 16) == 0;
}

// One of its own, or that of the newest operation, which passes unwatched then.
Probe* probe_for(Comm& comm, ProbeRing& ring) {
  const uint64_t out = out_of(ring);
  if (out == kProbes / 2) ring_the_bell();  // most of it may be answered by now
  const uint64_t number = comm.slot->coll_returned.load(std::memory_order_relaxed) +
                          comm.slot->p2p_returned.load(std::memory_order_relaxed);
  if (is_worth_watching(out, number))
    if (Probe* own = take_probe(ring)) return own;
  Probe* newest = take_newest(ring);
  if (newest) comm.slot->unwatched.fetch_add(1, std::memory_order_relaxed);
  return newest;
}

}  // namespace

Probe* watch_start(Comm& comm, void* stream) {
  const KeepErrno keep;
  const Driver* cuda = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
  if (!cuda || !recorder.config.states) return nullptr;
  ProbeRing* ring = ring_of(*cuda, comm, stream);
  Probe* probe = ring ? probe_for(comm, *ring) : nullptr;
  if (!probe) {
    comm.slot->unwatched.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  probe->counts_before = {comm.slot->coll_returned.load(std::memory_order_relaxed),
                          comm.slot->p2p_returned.load(std::memory_order_relaxed)};
  if (make_events(*cuda, *probe, ring->context) && cuda->event_record(probe->before, stream) == kCudaSuccess)
    return probe;
  probe->state.store(ProbeState::nothing, std::memory_order_release);
  comm.slot->unwatched.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

void watch_launched(Probe* probe, void* stream, bool launched, uint64_t collectives, uint64_t messages) {
  if (!probe) return;
  const KeepErrno keep;
  probe->counts = {collectives, messages};
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

void forget_states() {
  // The rings stay: their events are the parent's, and CUDA does not work in the child of a fork.
  for (auto& ring : rings.at) ring.store(nullptr, std::memory_order_relaxed);
  rings.count.store(0, std::memory_order_relaxed);
  rings.wanted.store(0, std::memory_order_relaxed);
  rings.running.store(0, std::memory_order_relaxed);
}

}  // namespace lockstep::shim
