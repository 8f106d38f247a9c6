// SPDX-License-Identifier: MIT
//
// The hot path: recording an enqueued operation (a collective, a send, a receive). It is made twice from this one text.
//
// The plain way is inlined into each hook, where function and kind are constants, so that arguments stay in registers
// and what the function does not have costs nothing; together with the two time stamps it is a few dozen nanoseconds.
// It is for the call that training makes all the time (is_plain): outside a group, of more than nothing, on the
// communicator that this thread used last. The long way is in calls.cc, once: for members of groups, for front ends,
// which learn the function at run time, and for the first call of a thread on a communicator.
//
// What is rare (a second thread on the communicator, a group, a capture, digests, events) is called out of line and is
// given values, never the address of the Call or its arguments: else the compiler would have to keep both in memory.

#pragma once

#include <cstddef>

#include "interpose/shim/calls.h"
#include "interpose/shim/clock.h"
#include "interpose/shim/comms.h"
#include "interpose/shim/digests.h"
#include "interpose/shim/driver.h"
#include "interpose/shim/lifecycle.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/stacks.h"
#include "interpose/shim/states.h"
#include "interpose/trace/writer.h"

#define LOCKSTEP_HOT __attribute__((always_inline)) inline

namespace lockstep::shim {

constexpr bool failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

// --- out of line (operation.cc) ------------------------------------------------------------------------------------

struct StreamNotes {
  bool watchable;  // events may be recorded on it
  uint16_t flags;  // of the call
};
StreamNotes note_stream(Comm* comm, uint64_t stream);
void take_numbers_back(Comm& comm, std::atomic<uint64_t>* called, std::atomic<uint64_t>* edge);
void write_end_elsewhere(ThreadState& thread, abi::Fn fn, uint64_t begin, uint64_t stamp, ncclResult_t result,
                         uint32_t comm);

// Nothing has to be looked up or made for this call, and it is of the kind that needs the least.
LOCKSTEP_HOT bool is_plain(const ThreadState& thread, abi::FunctionKind kind, const CallArgs& args) {
  return (thread.depth | thread.group_depth) == 0 && thread.epoch == recorder.ready.load(std::memory_order_relaxed) &&
         thread.cached_handle == args.comm && thread.cached_epoch == comm_epoch.load(std::memory_order_acquire) &&
         thread.cached_comm && (kind != abi::FunctionKind::collective || args.count != 0);
}

// --- inline --------------------------------------------------------------------------------------------------------

inline std::atomic<uint64_t>* called_counter(const Comm& comm, abi::FunctionKind kind) {
  if (kind == abi::FunctionKind::collective) return &comm.slot->coll_called;
  return kind == abi::FunctionKind::p2p ? &comm.slot->p2p_called : nullptr;
}
inline std::atomic<uint64_t>* returned_counter(const Comm& comm, abi::FunctionKind kind) {
  if (kind == abi::FunctionKind::collective) return &comm.slot->coll_returned;
  return kind == abi::FunctionKind::p2p ? &comm.slot->p2p_returned : nullptr;
}

// By NCCL's own rules, which differ from function to function.
LOCKSTEP_HOT bool in_place(abi::Fn fn, const CallArgs& args, const Comm* comm) {
  using abi::Fn;
  if (fn == Fn::AllReduce || fn == Fn::Reduce || fn == Fn::Broadcast) return args.sendbuff == args.recvbuff;
  if (fn == Fn::Bcast) return true;
  if (fn != Fn::AllGather && fn != Fn::ReduceScatter && fn != Fn::Gather && fn != Fn::Scatter) return false;
  const int32_t rank = comm ? comm->slot->rank : -1;
  if (rank < 0) return false;
  const uint64_t own = args.count * abi::dtype_size(args.dtype) * static_cast<uint64_t>(rank);
  if (fn == Fn::AllGather) return args.sendbuff == args.recvbuff + own;
  if (fn == Fn::ReduceScatter) return args.recvbuff == args.sendbuff + own;
  if (rank != args.peer) return false;
  return fn == Fn::Gather ? args.sendbuff == args.recvbuff + own : args.recvbuff == args.sendbuff + own;
}

// What the communicator remembers outside the ring. Only operations: a lifecycle call shows in its state. Under the
// lock.
LOCKSTEP_HOT trace::CallSummary* summarise(trace::CommSlot& slot, uint64_t begin, const trace::BeginFields& f) {
  using trace::CallSummary;
  CallSummary* const at = &slot.recent[add_to(slot.recent_next, 1) % trace::kRecentCalls];
  CallSummary* opaque = at;
  asm("" : "+r"(opaque));  // one address, not a sum at each store
  CallSummary& s = *opaque;
  s.event.store((begin + 1) | trace::kBusy, std::memory_order_relaxed);
  trace::keep_store_order();
  s.seq = f.seq;
  s.stamp = f.stamp;
  s.count = f.count;
  // The small fields two and more at a time: this is in every call.
  auto* words = reinterpret_cast<uint64_t*>(&s);
  static_assert(offsetof(CallSummary, fn) == 32 && offsetof(CallSummary, dtype) == 34 &&
                offsetof(CallSummary, flags) == 35 && offsetof(CallSummary, redop) == 36 &&
                offsetof(CallSummary, peer) == 40 && offsetof(CallSummary, native_stack) == 44 &&
                offsetof(CallSummary, tid) == 48 && offsetof(CallSummary, group) == 52);
  const uint32_t kinds = f.fn | static_cast<uint32_t>(f.dtype) << 16 | static_cast<uint32_t>(f.flags & 0xff) << 24;
  __atomic_store_n(words + 4, trace::word_of(kinds, static_cast<uint32_t>(f.redop)), __ATOMIC_RELAXED);
  __atomic_store_n(words + 5, trace::word_of(static_cast<uint32_t>(f.peer), f.native_stack), __ATOMIC_RELAXED);
  __atomic_store_n(words + 6, trace::word_of(f.tid, f.group), __ATOMIC_RELAXED);
  s.returned.store(0, std::memory_order_relaxed);
  s.event.store(begin + 1, std::memory_order_release);
  return &s;
}

// Under the communicator's lock, as all that changes its numbers.
LOCKSTEP_HOT void take_numbers(Call& call, abi::Fn fn, abi::FunctionKind kind, const CallArgs& args,
                               trace::BeginFields& f) {
  trace::CommSlot& slot = *call.comm->slot;
  if (kind == abi::FunctionKind::collective) {
    if (call.counted) f.seq = add_to(slot.coll_called, 1);
  } else if (kind == abi::FunctionKind::p2p) {
    add_to(slot.p2p_called, 1);
    call.edge = edge_counter(*call.comm, args.peer, fn == abi::Fn::Send);
    if (call.edge) f.seq = add_to(*call.edge, 1);
  }
}

template <bool plain>
LOCKSTEP_HOT trace::BeginFields begin_fields(ThreadState& thread, abi::Fn fn, const CallArgs& args, Comm* comm,
                                             bool zero, uint64_t stamp) {
  const uint32_t depth = plain ? 0 : thread.group_depth;
  trace::BeginFields f;
  f.stamp = stamp;
  f.fn = static_cast<uint16_t>(fn);
  f.tid = thread.tid;
  f.comm = comm ? comm->serial : 0;
  f.peer = args.peer;
  f.count = args.count;
  f.seq = UINT64_MAX;
  f.sendbuff = args.sendbuff;
  f.recvbuff = args.recvbuff;
  f.stream = args.stream;
  f.python_stack = 0;
  f.redop = args.redop;
  f.dtype = static_cast<uint8_t>(args.dtype);
  f.group_depth = static_cast<uint8_t>(depth < 255 ? depth : 255);
  f.flags = static_cast<uint16_t>((in_place(fn, args, comm) ? trace::kInPlace : 0) |
                                  (depth ? trace::kInGroup : 0) | (zero ? trace::kZeroCount : 0) |
                                  (args.front ? trace::kTold : 0) | (args.captured ? trace::kCaptured : 0));
  f.group = depth ? thread.group : 0;
  MarksNow marks = {thread.step, thread.mark_bits};
  uint32_t slot_and_marks;  // both at once
  static_assert(offsetof(ThreadState, mark_bits) == offsetof(ThreadState, slot_number) + 2);
  __builtin_memcpy(&slot_and_marks, &thread.slot_number, 4);
  // Without a branch between the two, since a job that marks nothing is as usual as one whose every thread marks.
  if (__builtin_expect((slot_and_marks < 0x10000) &
                       (recorder.trace.status->process_marks.load(std::memory_order_relaxed) != 0), 0)) {
    marks = latest_marks();
    slot_and_marks |= static_cast<uint32_t>(marks.bits) << 16;
  }
  f.step = marks.step;
  f.thread_slot = static_cast<uint16_t>(slot_and_marks);
  f.mark_bits = static_cast<uint16_t>(slot_and_marks >> 16);
  return f;
}

LOCKSTEP_HOT void write_call(const Call& call, ThreadState& thread, const trace::BeginFields& f) {
  trace::write_begin(call.record, call.begin, f);
  if (__builtin_expect(thread.slot != nullptr, 1)) {
    thread.slot->open_stamp.store(f.stamp, std::memory_order_relaxed);
    thread.slot->open_call.store(call.begin + 1, std::memory_order_release);
  }
  recorder.trace.status->last_call_stamp.store(f.stamp, std::memory_order_relaxed);
}

// The thread is in the recorder from here on, and the call knows its communicator.
template <bool plain>
LOCKSTEP_HOT void enter_recorder(Call& call, ThreadState& thread, const CallArgs& args) {
  call.depth = thread.depth;
  thread.depth = kInRecorder;
  call.recorded = true;
  call.epoch = recorder.epoch.load(std::memory_order_relaxed);
  call.comm = plain ? thread.cached_comm : find_comm(args.comm, thread);
  if (plain && !call.comm) __builtin_unreachable();
}

// The thread is known, and not inside a hooked call.
template <bool plain>
LOCKSTEP_HOT void begin_operation(Call& call, ThreadState& thread, abi::Fn fn, abi::FunctionKind kind,
                                  const CallArgs& args) {
  const uint64_t stamp = stamp_now(recorder.tsc);
  enter_recorder<plain>(call, thread, args);
  const bool zero = !plain && kind == abi::FunctionKind::collective && args.count == 0;
  const bool in_group = !plain && thread.group_depth != 0;
  call.counted = call.comm && !zero && kind != abi::FunctionKind::onesided;
  call.edge = nullptr;
  call.summary = nullptr;
  call.probe = nullptr;
  call.watchable = call.digested = false;

  trace::BeginFields f = begin_fields<plain>(thread, fn, args, call.comm, zero, stamp);
  f.native_stack = capture_stack();
  call.record = trace::reserve(recorder.trace, thread.cursor, call.begin);
  thread.comm_calls++;
  if (__builtin_expect(driver != nullptr, 0) && !zero && !args.front) {
    const StreamNotes notes = note_stream(call.comm, args.stream);
    call.watchable = notes.watchable;
    f.flags |= notes.flags;
  }
  if (call.comm) {
    call.comm->slot->last_stream.store(args.stream, std::memory_order_relaxed);
    with_numbers(*call.comm, [&]() __attribute__((always_inline)) {
      take_numbers(call, fn, kind, args, f);
      call.summary = summarise(*call.comm->slot, call.begin, f);
    });
  }
  write_call(call, thread, f);
  if (__builtin_expect(!call.watchable, 1) || !call.comm) return;  // no driver, no events
  if (recorder.config.digest[0] && kind == abi::FunctionKind::collective && call.counted) {
    call.digest = describe_digest(fn, *call.comm, args.sendbuff, args.recvbuff, args.count, args.dtype, args.peer,
                                  args.stream, call.begin, f.seq);
    call.digested = call.digest.comm != 0;
    if (call.digested && !in_group) digest_input(call.digest);
  }
  if (!in_group) call.probe = watch_start(*call.comm, reinterpret_cast<void*>(args.stream));
}

template <bool plain>
LOCKSTEP_HOT void count_return(Call& call, abi::FunctionKind kind, ThreadState& thread, const CallArgs& args) {
  if (!call.counted) return;
  std::atomic<uint64_t>* const returned = returned_counter(*call.comm, kind);
  with_numbers(*call.comm, [&] { add_to(*returned, 1); });
  if (!plain && thread.group_depth != 0)
    add_member(thread,
               {call.comm, called_counter(*call.comm, kind), returned, call.edge, nullptr, call.begin + 1, args.stream,
                call.watchable, nullptr, call.digested, call.digested ? call.digest : DigestJob{}});
}

// The end of a call, where its begin is while the thread owns that block, else as a record of its own.
LOCKSTEP_HOT void write_call_end(const Call& call, ThreadState& thread, abi::Fn fn, ncclResult_t result, uint64_t stamp,
                                 uint32_t comm) {
  if (__builtin_expect(trace::owns(thread.cursor, call.begin), 1))
    trace::end_in_place(call.record, call.begin, stamp, result, comm);
  else
    write_end_elsewhere(thread, fn, call.begin, stamp, result, comm);
  if (__builtin_expect(thread.slot != nullptr, 1)) thread.slot->open_call.store(0, std::memory_order_release);
  recorder.trace.status->last_call_stamp.store(stamp, std::memory_order_relaxed);
  thread.depth = call.depth;
}

template <bool plain>
LOCKSTEP_HOT void end_operation(Call& call, ThreadState& thread, abi::Fn fn, abi::FunctionKind kind,
                                const CallArgs& args, ncclResult_t result) {
  const uint64_t stamp = stamp_now(recorder.tsc);
  if (__builtin_expect(failed(result), 0)) {
    if (call.counted) take_numbers_back(*call.comm, called_counter(*call.comm, kind), call.edge);
  } else {
    count_return<plain>(call, kind, thread, args);
    if ((plain || thread.group_depth == 0) && __builtin_expect(result == ncclSuccess, 1) && call.comm) {
      if (call.digested) digest_output(call.digest);
      comm_proved_ready(*call.comm, stamp);
    }
  }
  if (__builtin_expect(call.probe != nullptr, 0)) {
    const trace::CommSlot& slot = *call.comm->slot;
    watch_launched(call.probe, reinterpret_cast<void*>(args.stream), result == ncclSuccess,
                   slot.coll_returned.load(std::memory_order_relaxed),
                   slot.p2p_returned.load(std::memory_order_relaxed));
  }
  trace::CallSummary* s = call.summary;
  // Else it was lapped by other threads' calls.
  if (s && __builtin_expect(s->event.load(std::memory_order_relaxed) == call.begin + 1, 1)) {
    if (__builtin_expect(failed(result), 0)) __atomic_fetch_or(&s->flags, trace::kGivenBack, __ATOMIC_RELAXED);
    s->returned.store(stamp, std::memory_order_release);
  }
  if (__builtin_expect(!call.comm, 0) && args.comm && result == ncclSuccess) adopt_comm(args.comm, stamp, args.copy);
  write_call_end(call, thread, fn, result, stamp, call.comm ? call.comm->serial : 0);
}

}  // namespace lockstep::shim
