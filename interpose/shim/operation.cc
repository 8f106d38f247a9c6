// SPDX-License-Identifier: MIT
//
// See operation.h: what its hot path calls when something rare is the case.

#include "interpose/shim/operation.h"

#include "interpose/shim/libc.h"
#include "interpose/shim/keep_errno.h"

namespace lockstep::shim {

StreamNotes note_stream(Comm* comm, uint64_t stream) {
  const KeepErrno keep;
  const StreamUse use = use_of(stream);
  if (use != StreamUse::capturing) return {use == StreamUse::free, 0};
  recorder.trace.status->captured_calls.fetch_add(1, std::memory_order_relaxed);
  if (comm) {
    comm->slot->captured.fetch_add(1, std::memory_order_relaxed);
    go_blind(comm, trace::kBlindGraph, "graph capture");
  }
  return {false, trace::kCaptured};
}

void take_numbers_back(Comm& comm, std::atomic<uint64_t>* called, std::atomic<uint64_t>* edge) {
  const HoldNumbers hold(comm);
  for (std::atomic<uint64_t>* counter : {called, edge})
    if (counter) add_to(*counter, UINT64_MAX);
}

void write_end_elsewhere(ThreadState& thread, abi::Fn fn, uint64_t begin, uint64_t stamp, ncclResult_t result,
                         uint32_t comm) {
  uint64_t sequence;
  trace::Record* record = trace::reserve(recorder.trace, thread.cursor, sequence);
  trace::write_end(record, sequence, stamp, static_cast<uint16_t>(fn), thread.tid, begin, result, comm);
}

MarksNow latest_marks() {
  const uint32_t latest = recorder.trace.status->process_marks.load(std::memory_order_relaxed);
  if (latest == 0 || latest > trace::kThreadSlots) return {0, 0};
  const trace::Marks& marks = recorder.trace.threads[latest - 1].marks;
  return {__atomic_load_n(&marks.step, __ATOMIC_RELAXED),
          static_cast<uint16_t>(__atomic_load_n(&marks.bits, __ATOMIC_RELAXED))};
}

}  // namespace lockstep::shim
