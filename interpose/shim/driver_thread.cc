// SPDX-License-Identifier: MIT
//
// See states.h: the side of the thread that asks. It takes the probes of each ring in their order and puts what the
// driver answers into the communicator's slot of the trace.

#include "interpose/shim/libc.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/driver.h"
#include "interpose/shim/probes.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/states.h"

namespace lockstep::shim {

namespace {

constexpr long kBusyNs = 10 * 1000000, kIdleNs = 200 * 1000000;

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

void note_start(trace::CommSlot& slot, const Counts& of) {
  slot.moved_stamp.store(stamp_now(recorder.tsc), std::memory_order_relaxed);
  raise_to(slot.coll_started, of.collectives);
  raise_to(slot.p2p_started, of.messages);
}

void note_end(trace::CommSlot& slot, const Counts& of) {
  note_start(slot, of);
  raise_to(slot.coll_completed, of.collectives);
  raise_to(slot.p2p_completed, of.messages);
}

enum class Answer { earlier_out, earlier_ended, not_started, started, ended, dropped };

// The operations of a communicator run one after the other, so what is behind one that has not ended has not started,
// watched or not. Of those behind one that has ended nothing is known until the next is asked for.
void note_unstarted(trace::CommSlot& slot, const Probe& probe, Answer answer) {
  uint64_t from = UINT64_MAX;
  if (answer == Answer::earlier_out) from = probe.counts_earlier.collectives;
  if (answer == Answer::not_started) from = probe.counts_before.collectives;
  if (answer == Answer::started) from = probe.counts.collectives;
  slot.coll_unstarted.store(from + 1, std::memory_order_relaxed);
}

void note(trace::CommSlot& slot, const Probe& probe, Answer answer) {
  note_unstarted(slot, probe, answer);
  const bool first = probe.counts_before.collectives == 0 && probe.counts_before.messages == 0;
  if (answer == Answer::earlier_ended) note_end(slot, probe.counts_earlier);
  if (answer == Answer::started) note_start(slot, probe.counts);
  if (answer == Answer::ended) note_end(slot, probe.counts);
  if (first &&
      (answer == Answer::not_started || answer == Answer::started))  // what is not known yet is known to be none
    for (auto* count : {&slot.coll_started, &slot.coll_completed, &slot.p2p_started, &slot.p2p_completed})
      raise_to(*count, 0);
}

// The probe that is next in line, as it is with the lock held; CUDA is asked with the lock let go.
struct Question {
  Probe* probe = nullptr;  // nullptr = nothing is out
  ProbeState state;
  uint32_t turn;
  void* earlier;  // nullptr = has ended
  void* before;   // nullptr = has started
  void* after;
};

Question next_question(ProbeRing& ring) {
  Question q{};
  lock(ring.lock);
  const uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  if (tail != ring.head.load(std::memory_order_relaxed)) {
    q.probe = &ring.probes[tail % kProbes];
    q.state = q.probe->state.load(std::memory_order_acquire);
    q.turn = q.probe->turn;
    if (q.state == ProbeState::out && !ring.comm) q.state = ProbeState::nothing;
    if (q.state == ProbeState::out) {
      q.earlier = q.probe->has_earlier ? q.probe->earlier : nullptr;
      q.before = q.probe->started ? nullptr : q.probe->before;
      q.after = q.probe->after;
    }
  }
  unlock(ring.lock);
  return q;
}

// Unless the probe watches another operation by now.
void take_answer(ProbeRing& ring, const Question& q, Answer answer) {
  lock(ring.lock);
  Probe& probe = *q.probe;
  if (probe.turn == q.turn) {
    if (ring.comm) note(*ring.comm->slot, probe, answer);
    if (answer == Answer::earlier_ended) probe.has_earlier = false;
    if (answer == Answer::started) probe.started = true;
    if (answer == Answer::ended || answer == Answer::dropped) {
      probe.state.store(ProbeState::free, std::memory_order_relaxed);
      ring.tail.store(ring.tail.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
  }
  unlock(ring.lock);
}

// False when the next in line has not ended yet.
bool ask(const Driver& cuda, ProbeRing& ring, const Question& q) {
  if (q.earlier) {
    const bool ended = done(cuda, q.earlier);
    take_answer(ring, q, ended ? Answer::earlier_ended : Answer::earlier_out);
    if (!ended) return false;
  }
  if (q.before) {
    const bool started = done(cuda, q.before);
    take_answer(ring, q, started ? Answer::started : Answer::not_started);
    if (!started) return false;
  }
  if (!done(cuda, q.after)) return false;
  take_answer(ring, q, Answer::ended);
  return true;
}

// Answers what can be answered, in order. True when something is still out.
bool ask_ring(const Driver& cuda, ProbeRing& ring) {
  for (;;) {
    const Question q = next_question(ring);
    if (!q.probe) return false;
    if (q.state == ProbeState::filling) return true;
    if (q.state == ProbeState::nothing)
      take_answer(ring, q, Answer::dropped);
    else if (!ask(cuda, ring, q))
      return true;
  }
}

bool ask_all(const Driver& cuda, void*& current) {
  bool out = false;
  const uint32_t count = rings.count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; i++) {
    ProbeRing& ring = *rings.at[i].load(std::memory_order_acquire);
    // Acquired, since the ring's context was written before its first probe was taken.
    if (ring.head.load(std::memory_order_acquire) != ring.tail.load(std::memory_order_relaxed)) {
      if (current != ring.context && cuda.context_set(ring.context) == kCudaSuccess) current = ring.context;
      if (ask_ring(cuda, ring)) out = true;
    }
    lock(ring.lock);
    const bool idle =
        !ring.comm && ring.head.load(std::memory_order_relaxed) == ring.tail.load(std::memory_order_relaxed);
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
    const uint32_t rung = rings.bell.load(std::memory_order_relaxed);
    const bool out = ask_all(cuda, current);
    const struct timespec pause = {0, out ? kBusyNs : kIdleNs};
    syscall(SYS_futex, &rings.bell, FUTEX_WAIT_PRIVATE, rung, &pause, nullptr, 0);
  }
  return nullptr;
}

}  // namespace

void ring_the_bell() {
  rings.bell.fetch_add(1, std::memory_order_relaxed);
  syscall(SYS_futex, &rings.bell, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void start_driver_thread() {
  if (!rings.wanted.load(std::memory_order_relaxed) || rings.running.exchange(1, std::memory_order_relaxed)) return;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 512 << 10);
  pthread_t thread;
  const int error =
      pthread_create(&thread, &attributes, ask_the_driver, nullptr);  // all signals are blocked in the helper
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    recorder.config.states = false;
    recorder.trace.status->states.store(static_cast<uint32_t>(trace::StatesKnown::failed), std::memory_order_relaxed);
  }
}

}  // namespace lockstep::shim
