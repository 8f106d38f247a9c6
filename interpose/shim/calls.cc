// SPDX-License-Identifier: MIT
//
// See calls.h. The common call (an enqueued operation on a known communicator) takes no lock and makes no system call;
// init and teardown calls are in lifecycle.cc.
//
// Numbers. A collective takes the communicator's next number when it begins, so that a call that never comes back has
// one, and gives it back when it failed. In a group, everything is decided by the outermost ncclGroupEnd: the thread
// keeps the group's members and takes all their numbers back when it fails, or when the group was only simulated.

#include "interpose/shim/libc.h"

#include "interpose/shim/calls.h"

#include <string.h>

#include "interpose/shim/operation.h"

namespace lockstep::shim {
namespace {

using abi::Fn;
using abi::FunctionKind;
using trace::BeginFields;

bool is_init(FunctionKind kind) { return kind == FunctionKind::init; }

void mark_given_back(trace::CallSummary& s) { __atomic_fetch_or(&s.flags, trace::kGivenBack, __ATOMIC_RELAXED); }

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

void give_back(std::atomic<uint64_t>* counter) {
  if (counter) add_to(*counter, UINT64_MAX);
}

void* handle_of(uint64_t stream) { return reinterpret_cast<void*>(stream); }

// The group acts as posted on the streams of its members, all at once: one probe a communicator watches them all.
void watch_group(ThreadState& thread) {
  for (uint32_t i = 0; i < thread.member_count; i++)
    if (thread.members[i].digested) digest_input(thread.members[i].digest);
  constexpr unsigned kMost = 8;
  const Comm* watched[kMost];
  unsigned count = 0;
  for (uint32_t i = 0; i < thread.member_count; i++) {
    GroupMember& member = thread.members[i];
    if (!member.watchable) continue;
    bool known = false;
    for (unsigned k = 0; k < count; k++) known |= watched[k] == member.comm;
    if (known) continue;
    if (count == kMost) {
      member.comm->slot->unwatched.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
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

void begin_call(Call& call, Fn fn, FunctionKind kind, const CallArgs& args) {
  call.recorded = false;
  const bool starts = is_init(kind) || fn == Fn::GetUniqueId;
  if (!recording() && !(starts && start_recording())) return;
  if (!args.front && recorder.ready.load(std::memory_order_relaxed) == kNotReady) {
    recorder.hooked.store(1, std::memory_order_relaxed);
    recorder.ready.store(recorder.epoch.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  ThreadState& thread = known_thread();
  if (enqueues(kind)) return begin_operation<false>(call, thread, fn, kind, args);

  const uint64_t stamp = stamp_now(recorder.tsc);
  enter_recorder<false>(call, thread, args);
  call.made = nullptr;
  BeginFields f = begin_fields<false>(thread, fn, args, call.comm, false, stamp);
  f.native_stack = capture_stack();
  call.record = trace::reserve(recorder.trace, thread.cursor, call.begin);
  if (kind == FunctionKind::group_start || kind == FunctionKind::group_end)
    begin_group_call(call, fn, thread, f);
  else
    begin_lifecycle(call, fn, kind, args, f);
  write_call(call, thread, f);
  if (fn == Fn::GroupEnd && thread.group_depth == 1 && driver) watch_group(thread);
}

void end_call(Call& call, Fn fn, FunctionKind kind, const CallArgs& args, ncclResult_t result) {
  const bool group = kind == FunctionKind::group_start || kind == FunctionKind::group_end;
  ThreadState& thread = this_thread;
  if (!call.recorded || call.epoch != recorder.epoch.load(std::memory_order_relaxed)) {
    if (group) follow_group(thread, fn, result);
    return;
  }
  if (enqueues(kind)) return end_operation<false>(call, thread, fn, kind, args, result);

  const uint64_t stamp = stamp_now(recorder.tsc);
  uint32_t comm = call.comm ? call.comm->serial : 0;
  if (group)
    end_group_call(thread, fn, result, stamp);
  else
    comm = end_lifecycle(call, fn, kind, args, result, stamp, thread);
  if (!call.comm && args.comm && result == ncclSuccess && !is_init(kind) && kind != FunctionKind::teardown)
    adopt_comm(args.comm, stamp, args.copy);
  write_call_end(call, thread, fn, result, stamp, comm);
}

}  // namespace lockstep::shim
