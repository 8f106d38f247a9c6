// SPDX-License-Identifier: MIT
//
// See calls.h. The common call (an enqueued operation on a known communicator) takes no lock and makes no system call;
// init and teardown calls are in lifecycle.cc.
//
// Numbers. A collective takes the communicator's next number when it begins, so that a call that never comes back has one,
// and gives it back when it failed. In a group, everything is decided by the outermost ncclGroupEnd: the thread keeps the
// group's members and takes all their numbers back when it fails, or when the group was only simulated.

#include "interpose/shim/libc.h"

#include "interpose/shim/calls.h"

#include <string.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/comms.h"
#include "interpose/shim/digests.h"
#include "interpose/shim/driver.h"
#include "interpose/shim/lifecycle.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/stacks.h"
#include "interpose/shim/states.h"
#include "interpose/trace/writer.h"

namespace lockstep::shim {
namespace {

using abi::Fn;
using abi::FunctionKind;
using trace::BeginFields;

bool is_init(FunctionKind kind) { return kind == FunctionKind::init; }

// By NCCL's own rules, which differ from function to function.
bool in_place(Fn fn, const CallArgs& args, const Comm* comm) {
  const uint64_t bytes = args.count * abi::dtype_size(args.dtype);
  const int32_t rank = comm ? comm->slot->rank : -1;
  const uint64_t own = bytes * static_cast<uint64_t>(rank);
  switch (fn) {
    case Fn::AllReduce:
    case Fn::Reduce:
    case Fn::Broadcast: return args.sendbuff == args.recvbuff;
    case Fn::Bcast: return true;
    case Fn::AllGather: return rank >= 0 && args.sendbuff == args.recvbuff + own;
    case Fn::ReduceScatter: return rank >= 0 && args.recvbuff == args.sendbuff + own;
    case Fn::Gather: return rank >= 0 && rank == args.peer && args.sendbuff == args.recvbuff + own;
    case Fn::Scatter: return rank >= 0 && rank == args.peer && args.recvbuff == args.sendbuff + own;
    default: return false;
  }
}

// Under the communicator's lock, as all that changes its numbers.
void take_numbers(Call& call, Fn fn, FunctionKind kind, const CallArgs& args, BeginFields& f) {
  trace::CommSlot& slot = *call.comm->slot;
  if (kind == FunctionKind::collective) {
    if (call.zero) return;
    call.called = &slot.coll_called;
    call.returned = &slot.coll_returned;
    f.seq = add_to(slot.coll_called, 1);
  } else if (kind == FunctionKind::p2p) {
    call.called = &slot.p2p_called;
    call.returned = &slot.p2p_returned;
    add_to(slot.p2p_called, 1);
    call.edge = edge_counter(*call.comm, args.peer, fn == Fn::Send);
    if (call.edge) f.seq = add_to(*call.edge, 1);
  }
}

// What the communicator remembers outside the ring. Only operations: a lifecycle call shows in its state. Under the lock.
void summarise(Call& call, const BeginFields& f) {
  trace::CommSlot& slot = *call.comm->slot;
  trace::CallSummary& s = slot.recent[add_to(slot.recent_next, 1) % trace::kRecentCalls];
  s.event.store((call.begin + 1) | trace::kBusy, std::memory_order_relaxed);
  trace::keep_store_order();
  s.seq = f.seq;
  s.stamp = f.stamp;
  s.count = f.count;
  s.fn = f.fn;
  s.dtype = f.dtype;
  __atomic_store_n(&s.flags, static_cast<uint8_t>(f.flags), __ATOMIC_RELAXED);
  s.redop = f.redop;
  s.peer = f.peer;
  s.native_stack = f.native_stack;
  s.tid = f.tid;
  s.group = f.group;
  s.returned.store(0, std::memory_order_relaxed);
  s.event.store(call.begin + 1, std::memory_order_release);
  call.summary = &s;
}

void mark_given_back(trace::CallSummary& s) { __atomic_fetch_or(&s.flags, trace::kGivenBack, __ATOMIC_RELAXED); }

bool enqueues(FunctionKind kind) {
  return kind == FunctionKind::collective || kind == FunctionKind::p2p || kind == FunctionKind::onesided;
}

// The one communicator all members of the open group are on; nullptr when there are several or none.
Comm* comm_of_group(const ThreadState& thread) {
  Comm* only = nullptr;
  for (uint32_t i = 0; i < thread.member_count; i++) {
    if (only && thread.members[i].comm != only) return nullptr;
    only = thread.members[i].comm;
  }
  return only;
}

void begin_group_call(Call& call, Fn fn, ThreadState& thread, BeginFields& f) {
  f.flags &= trace::kTold;
  if (fn == Fn::GroupStart) {
    if (thread.group_depth == 0) thread.group = recorder.groups.fetch_add(1, std::memory_order_relaxed) + 1;
    f.group_depth = static_cast<uint8_t>(thread.group_depth < 255 ? thread.group_depth + 1 : 255);
    f.group = thread.group;
  } else if (thread.group_depth == 1) {
    call.comm = comm_of_group(thread);
    f.comm = call.comm ? call.comm->serial : 0;
    f.count = thread.member_count;
  }
}

void write(const Call& call, ThreadState& thread, const BeginFields& f) {
  trace::write_begin(call.record, call.begin, f);
  if (thread.slot) {
    thread.slot->open_stamp.store(f.stamp, std::memory_order_relaxed);
    thread.slot->open_call.store(call.begin + 1, std::memory_order_release);
  }
  recorder.trace.status->last_call_stamp.store(f.stamp, std::memory_order_relaxed);
}

void give_back(std::atomic<uint64_t>* counter) {
  if (counter) add_to(*counter, UINT64_MAX);
}

bool failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

void* handle_of(uint64_t stream) { return reinterpret_cast<void*>(stream); }

void note_stream(Call& call, const CallArgs& args, BeginFields& f) {
  const StreamUse use = use_of(args.stream);
  call.watchable = use == StreamUse::free;
  if (use != StreamUse::capturing) return;
  f.flags |= trace::kCaptured;
  recorder.trace.status->captured_calls.fetch_add(1, std::memory_order_relaxed);
  if (!call.comm) return;
  call.comm->slot->captured.fetch_add(1, std::memory_order_relaxed);
  go_blind(call.comm, trace::kBlindGraph, "graph capture");
}

// The group acts as posted on the streams of its members, all at once: one probe a communicator watches them all.
void watch_group(ThreadState& thread) {
  for (uint32_t i = 0; i < thread.member_count; i++)
    if (thread.members[i].digested) digest_input(thread.members[i].digest);
  constexpr unsigned kMost = 8;
  const Comm* watched[kMost];
  unsigned count = 0;
  for (uint32_t i = 0; i < thread.member_count && count < kMost; i++) {
    GroupMember& member = thread.members[i];
    if (!member.watchable) continue;
    bool known = false;
    for (unsigned k = 0; k < count; k++) known |= watched[k] == member.comm;
    if (known) continue;
    watched[count++] = member.comm;
    member.probe = watch_start(*member.comm, handle_of(member.stream));
  }
}

void group_was_launched(const ThreadState& thread, bool launched) {
  for (uint32_t i = 0; i < thread.member_count; i++) {
    const GroupMember& member = thread.members[i];
    if (launched && member.digested) digest_output(member.digest);
    if (!member.probe) continue;
    const trace::CommSlot& slot = *member.comm->slot;
    watch_launched(member.probe, handle_of(member.stream), launched, slot.coll_returned.load(std::memory_order_relaxed),
                   slot.p2p_returned.load(std::memory_order_relaxed));
  }
}

void end_operation(Call& call, const CallArgs& args, ThreadState& thread, ncclResult_t result, uint64_t stamp) {
  if (failed(result)) {
    if (call.called) {
      const HoldNumbers hold(*call.comm);
      give_back(call.called);
      give_back(call.edge);
    }
  } else {
    if (call.returned) {
      const HoldNumbers hold(*call.comm);
      add_to(*call.returned, 1);
    }
    if (thread.group_depth && call.called)
      add_member(thread, {call.comm, call.called, call.returned, call.edge, nullptr, call.begin + 1, args.stream,
                          call.watchable, nullptr, call.digested, call.digested ? call.digest : DigestJob{}});
    if (call.digested && thread.group_depth == 0 && result == ncclSuccess) digest_output(call.digest);
    if (call.comm && result == ncclSuccess && thread.group_depth == 0) comm_proved_ready(*call.comm, stamp);
  }
  if (call.probe) {
    const trace::CommSlot& slot = *call.comm->slot;
    watch_launched(call.probe, handle_of(args.stream), result == ncclSuccess,
                   slot.coll_returned.load(std::memory_order_relaxed), slot.p2p_returned.load(std::memory_order_relaxed));
  }
  trace::CallSummary* s = call.summary;
  if (!s || s->event.load(std::memory_order_relaxed) != call.begin + 1) return;  // lapped by other threads' calls
  if (failed(result)) mark_given_back(*s);
  s->returned.store(stamp, std::memory_order_release);
}

void void_summary(const GroupMember& member) {
  for (trace::CallSummary& s : member.comm->slot->recent)
    if (s.event.load(std::memory_order_relaxed) == member.event) mark_given_back(s);
}

void end_group(ThreadState& thread, Fn fn, ncclResult_t result, uint64_t stamp) {
  const bool launched = fn == Fn::GroupEnd && !failed(result);
  group_was_launched(thread, fn == Fn::GroupEnd && result == ncclSuccess);
  for (uint32_t i = 0; i < thread.member_count; i++) {
    const GroupMember& member = thread.members[i];
    if (member.new_handle) {
      finish_grouped_init(*member.comm, member.new_handle, fn == Fn::GroupEnd ? result : ncclInvalidUsage, stamp);
    } else if (!launched) {
      const HoldNumbers hold(*member.comm);
      give_back(member.called);
      give_back(member.returned);
      give_back(member.edge);
      void_summary(member);
    } else if (result == ncclSuccess) {
      comm_proved_ready(*member.comm, stamp);
    }
  }
  thread.member_count = 0;
}

void end_group_call(ThreadState& thread, Fn fn, ncclResult_t result, uint64_t stamp) {
  if (fn == Fn::GroupStart) {
    if (result == ncclSuccess) thread.group_depth++;
    return;
  }
  if (thread.group_depth == 0) return;  // an end without a start
  if (--thread.group_depth > 0) return;
  end_group(thread, fn, result, stamp);
  thread.group = 0;
}

// Outside recording only the depth is kept, so that a group opened before the first communicator is known to be open.
void follow_group(ThreadState& thread, Fn fn, ncclResult_t result) { end_group_call(thread, fn, result, 0); }

}  // namespace

void fill_marks(const ThreadState& thread, uint16_t& bits, uint64_t& step) {
  bits = static_cast<uint16_t>(thread.mark_bits);
  step = thread.step;
  if (thread.mark_bits) return;
  // A thread that never marks (an autograd thread) works on what the process's latest mark says.
  const uint32_t latest = recorder.trace.status->process_marks.load(std::memory_order_relaxed);
  if (latest == 0 || latest > trace::kThreadSlots) return;
  const trace::Marks& marks = recorder.trace.threads[latest - 1].marks;
  bits = static_cast<uint16_t>(__atomic_load_n(&marks.bits, __ATOMIC_RELAXED));
  step = __atomic_load_n(&marks.step, __ATOMIC_RELAXED);
}

void begin_call(Call& call, Fn fn, FunctionKind kind, const CallArgs& args) {
  call.recorded = false;
  const bool starts = is_init(kind) || fn == Fn::GetUniqueId;
  if (!recording() && !(starts && start_recording())) return;
  if (!args.front && !recorder.hooked.load(std::memory_order_relaxed)) recorder.hooked.store(1, std::memory_order_relaxed);
  ThreadState& thread = known_thread();
  const uint64_t stamp = stamp_now(recorder.tsc);
  call.depth = thread.depth;
  thread.depth = kInRecorder;
  call.recorded = true;
  call.epoch = recorder.epoch.load(std::memory_order_relaxed);
  call.comm = find_comm(args.comm, thread);
  call.zero = kind == FunctionKind::collective && args.count == 0;
  call.made = nullptr;
  call.summary = nullptr;
  call.called = call.returned = call.edge = nullptr;
  call.probe = nullptr;
  call.watchable = call.digested = false;

  BeginFields f;
  f.stamp = stamp;
  f.fn = static_cast<uint16_t>(fn);
  f.tid = thread.tid;
  f.comm = call.comm ? call.comm->serial : 0;
  f.peer = args.peer;
  f.count = args.count;
  f.seq = UINT64_MAX;
  f.sendbuff = args.sendbuff;
  f.recvbuff = args.recvbuff;
  f.stream = args.stream;
  f.python_stack = 0;
  f.redop = args.redop;
  f.dtype = static_cast<uint8_t>(args.dtype);
  f.group_depth = static_cast<uint8_t>(thread.group_depth < 255 ? thread.group_depth : 255);
  f.flags = static_cast<uint16_t>((in_place(fn, args, call.comm) ? trace::kInPlace : 0) |
                                  (thread.group_depth ? trace::kInGroup : 0) | (call.zero ? trace::kZeroCount : 0) |
                                  (args.front ? trace::kTold : 0) | (args.captured ? trace::kCaptured : 0));
  f.group = thread.group_depth ? thread.group : 0;
  f.thread_slot = thread.slot_number;
  fill_marks(thread, f.mark_bits, f.step);
  f.native_stack = capture_stack();
  call.record = trace::reserve(recorder.trace, thread.cursor, call.begin);

  if (enqueues(kind)) {
    thread.comm_calls++;
    if (call.comm) call.comm->slot->last_stream.store(args.stream, std::memory_order_relaxed);
    if (driver && !call.zero && !args.front) note_stream(call, args, f);
    if (call.comm) {
      const HoldNumbers hold(*call.comm);
      take_numbers(call, fn, kind, args, f);
      summarise(call, f);
    }
  } else if (kind == FunctionKind::group_start || kind == FunctionKind::group_end)
    begin_group_call(call, fn, thread, f);
  else
    begin_lifecycle(call, fn, kind, args, f);
  write(call, thread, f);
  if (__builtin_expect(recorder.config.digest[0] != 0, 0) && kind == FunctionKind::collective && !call.zero) {
    call.digested = describe_digest(call.digest, fn, call, args, f.seq);
    if (call.digested && thread.group_depth == 0) digest_input(call.digest);
  }
  if (call.watchable && call.comm && thread.group_depth == 0) call.probe = watch_start(*call.comm, handle_of(args.stream));
  if (fn == Fn::GroupEnd && thread.group_depth == 1 && driver) watch_group(thread);
}

void end_call(Call& call, Fn fn, FunctionKind kind, const CallArgs& args, ncclResult_t result) {
  const bool group = kind == FunctionKind::group_start || kind == FunctionKind::group_end;
  ThreadState& thread = this_thread;
  if (!call.recorded || call.epoch != recorder.epoch.load(std::memory_order_relaxed)) {
    if (group) follow_group(thread, fn, result);
    return;
  }
  const uint64_t stamp = stamp_now(recorder.tsc);
  uint32_t comm = call.comm ? call.comm->serial : 0;
  if (enqueues(kind))
    end_operation(call, args, thread, result, stamp);
  else if (group)
    end_group_call(thread, fn, result, stamp);
  else
    comm = end_lifecycle(call, fn, kind, args, result, stamp, thread);
  if (!call.comm && args.comm && result == ncclSuccess && !is_init(kind) && kind != FunctionKind::teardown)
    adopt_comm(args.comm, stamp, args.copy);
  if (__builtin_expect(trace::owns(thread.cursor, call.begin), 1)) {
    trace::end_in_place(call.record, call.begin, stamp, result, comm);
  } else {
    uint64_t sequence;
    trace::Record* record = trace::reserve(recorder.trace, thread.cursor, sequence);
    trace::write_end(record, sequence, stamp, static_cast<uint16_t>(fn), thread.tid, call.begin, result, comm);
  }
  if (thread.slot) thread.slot->open_call.store(0, std::memory_order_release);
  recorder.trace.status->last_call_stamp.store(stamp, std::memory_order_relaxed);
  thread.depth = call.depth;
}

}  // namespace lockstep::shim
