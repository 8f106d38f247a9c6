// SPDX-License-Identifier: MIT
//
// Marks: the one entry point a job may call, by way of lockstep.h. A mark is kept twice, as an event in the ring and as
// the thread's latest in its slot, so that it outlives a wrapped ring.

#include "interpose/shim/libc.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/comms.h"
#include "interpose/shim/marks.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/thread.h"

namespace lockstep::shim {
namespace {

void update(trace::Marks& marks, uint32_t kind, uint64_t value, const char* text, size_t length) {
  const auto has = [&](uint32_t bit) { __atomic_store_n(&marks.bits, marks.bits | bit, __ATOMIC_RELAXED); };
  trace::open_seqlock(marks.lock);
  if (kind == trace::kMarkStep) {
    __atomic_store_n(&marks.step, value, __ATOMIC_RELAXED);  // step and bits are read by threads that never mark
    has(trace::kHasStep);
  } else if (kind == trace::kMarkPhase) {
    has(trace::kHasPhase);
    trace::put_text(marks.phase, sizeof marks.phase, text, length);
  } else {
    has(trace::kHasSample);
    marks.sample_value = value;
    trace::put_text(marks.sample, sizeof marks.sample, text, length);
  }
  trace::close_seqlock(marks.lock);
}

bool is_kept(uint32_t kind) { return kind >= trace::kMarkStep && kind <= trace::kMarkSample; }

}  // namespace

void mark(uint32_t kind, uint64_t value, const char* text) {
  ThreadState& thread = this_thread;
  if (kind == trace::kMarkStep) {  // known to the thread even before there is a trace
    thread.mark_bits |= trace::kHasStep;
    thread.step = value;
  }
  if (!recording() || kind < trace::kMarkStep || kind > trace::kMarkCommName) return;
  const size_t length = text ? strlen(text) : 0;
  known_thread();
  if (is_kept(kind) && thread.slot) {
    update(thread.slot->marks, kind, value, text, length);
    recorder.trace.status->process_marks.store(thread.slot_number + 1u, std::memory_order_relaxed);
  }
  if (kind == trace::kMarkCommName && text)
    if (Comm* comm = find_comm(value, thread)) name_comm(*comm, text, length);
  uint64_t sequence;
  trace::Record* record = trace::reserve(recorder.trace, this_thread.cursor, sequence);
  trace::write_mark(record, sequence, stamp_now(recorder.tsc), static_cast<uint16_t>(kind), thread.tid, value,
                    thread.slot_number, text, length);
}

}  // namespace lockstep::shim

extern "C" __attribute__((visibility("default"))) void lockstep_mark_v1(int kind, uint64_t value, const char* text) {
  const int kept = errno;
  lockstep::shim::mark(static_cast<uint32_t>(kind), value, text);
  errno = kept;
}
