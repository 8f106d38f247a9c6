// SPDX-License-Identifier: MIT
//
// See lifecycle.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/lifecycle.h"

#include <stddef.h>
#include <string.h>

#include "interpose/abi/comm_hash.h"
#include "interpose/shim/clock.h"
#include "interpose/shim/driver.h"
#include "interpose/shim/keep_errno.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/states.h"

namespace lockstep::shim {
namespace {

using abi::Fn;
using abi::FunctionKind;
using trace::CommState;

// A field of a caller's struct is read only when the struct is long enough to have it: callers are older and newer than
// we.
#define LOCKSTEP_HAS(config, field) \
  ((config)->size >= offsetof(ncclConfig_t, field) + sizeof((config)->field))

// Where a field was put into what had been padding at the end, the size alone does not tell it from a caller that left
// garbage there. So for these the caller's version counts as well.
#define LOCKSTEP_HAS_IN_PADDING(config, field, since)                                  \
  (LOCKSTEP_HAS(config, field) &&                                                      \
   ((config)->size > offsetof(ncclConfig_t, field) + sizeof((config)->field) || (config)->version >= (since)))

const ncclConfig_t* usable(const ncclConfig_t* config) {
  const bool has_magic = config && config->size >= offsetof(ncclConfig_t, version);
  return has_magic && config->magic == NCCL_API_MAGIC ? config : nullptr;
}

const char* comm_name(const ncclConfig_t* config) {
  return usable(config) && LOCKSTEP_HAS(config, commName) ? config->commName : nullptr;
}

trace::CommConfig settings_of(const ncclConfig_t* config) {
  trace::CommConfig out = {};
  if (!usable(config)) return out;
  out.size = static_cast<uint32_t>(config->size);
#define LOCKSTEP_FIELD(to, field) out.to = LOCKSTEP_HAS(config, field) ? config->field : INT32_MIN
#define LOCKSTEP_PADDED(to, field, since) \
  out.to = LOCKSTEP_HAS_IN_PADDING(config, field, since) ? config->field : INT32_MIN
  LOCKSTEP_FIELD(blocking, blocking);
  LOCKSTEP_PADDED(cga_cluster_size, cgaClusterSize, NCCL_VERSION(2, 17, 0));
  LOCKSTEP_FIELD(min_ctas, minCTAs);
  LOCKSTEP_FIELD(max_ctas, maxCTAs);
  LOCKSTEP_FIELD(split_share, splitShare);
  LOCKSTEP_PADDED(traffic_class, trafficClass, NCCL_VERSION(2, 26, 0));
  LOCKSTEP_FIELD(collnet_enable, collnetEnable);
  LOCKSTEP_FIELD(cta_policy, CTAPolicy);
  LOCKSTEP_FIELD(shrink_share, shrinkShare);
#undef LOCKSTEP_FIELD
#undef LOCKSTEP_PADDED
  if (LOCKSTEP_HAS(config, netName) && config->netName)
    trace::put_text(out.net_name, sizeof out.net_name, config->netName, strnlen(config->netName, sizeof out.net_name));
  return out;
}
#undef LOCKSTEP_HAS_IN_PADDING
#undef LOCKSTEP_HAS

bool is_child(Fn fn) { return fn == Fn::CommSplit || fn == Fn::CommShrink; }

// An id for communicators that NCCL made without showing us one: unique in this process, which is all there is of it.
uint64_t made_up_id(uint32_t serial) {
  const trace::FileHeader& header = *recorder.trace.header;
  const uint64_t facts[4] = {static_cast<uint64_t>(header.pid), header.pid_start_ticks,
                             static_cast<uint64_t>(header.opened_wall_ns), serial};
  return abi::comm_hash_of_unique_id(facts, sizeof facts);
}

void begin_child(Call& call, Fn fn, const CallArgs& args, trace::BeginFields& f) {
  if (!call.comm) return;
  const uint32_t number = call.comm->children.fetch_add(1, std::memory_order_relaxed) + 1;
  if (fn == Fn::CommSplit && args.color == NCCL_SPLIT_NOCOLOR) return;
  NewComm spec;
  spec.parent = call.comm;
  spec.split_count = number;
  spec.color = fn == Fn::CommSplit ? args.color : 0;
  spec.key = args.key;
  if (call.comm->slot->id)
    spec.id = abi::comm_hash_of_child(call.comm->slot->id, static_cast<int32_t>(number), spec.color);
  spec.name = comm_name(args.config);
  spec.config = settings_of(args.config);
  spec.stamp = f.stamp;
  spec.copy = args.copy;
  call.made = create_comm(spec, next_serials(1));
}

void begin_ranked(Call& call, Fn fn, const CallArgs& args, trace::BeginFields& f) {
  NewComm spec;
  spec.parent = call.comm;  // of a grown communicator, on the ranks that had it
  spec.rank = args.rank;
  spec.nranks = args.nranks;
  // The id of a grown communicator is known to NCCL alone.
  if (fn != Fn::CommGrow && args.unique_id) spec.id = abi::comm_hash_of_unique_id(args.unique_id);
  spec.name = comm_name(args.config);
  spec.config = settings_of(args.config);
  spec.stamp = f.stamp;
  spec.copy = args.copy;
  call.made = create_comm(spec, next_serials(1));
  if (!call.comm && call.made) f.comm = call.made->serial;
}

// One thread makes all ranks at once. The id is one that NCCL asks itself for inside the call.
void begin_all(Call& call, const CallArgs& args, trace::BeginFields& f) {
  if (args.nranks <= 0 || args.nranks > static_cast<int32_t>(trace::kCommSlots)) return;
  const uint32_t first = next_serials(static_cast<uint32_t>(args.nranks));
  for (int32_t rank = 0; rank < args.nranks; rank++) {
    NewComm spec;
    spec.rank = rank;
    spec.nranks = args.nranks;
    spec.stamp = f.stamp;
    spec.copy = args.copy;
    Comm* made = create_comm(spec, first + static_cast<uint32_t>(rank));
    if (rank == 0) call.made = made;
  }
  f.comm = first;
}

void begin_init(Call& call, Fn fn, const CallArgs& args, trace::BeginFields& f) {
  f.count = args.nranks > 0 ? static_cast<uint64_t>(args.nranks) : 0;
  this_thread.nested_id_known = 0;
  call.old_handle = args.new_comm ? reinterpret_cast<uint64_t>(*args.new_comm) : 0;
  if (is_child(fn))
    begin_child(call, fn, args, f);
  else if (fn == Fn::CommInitAll)
    begin_all(call, args, f);
  else
    begin_ranked(call, fn, args, f);
}

bool failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

void settle(Comm& comm, uint64_t handle, ncclResult_t result, uint64_t stamp) {
  if (failed(result)) {
    if (comm.slot->handle) remove_handle(comm.slot->handle);
    set_state(comm, CommState::failed, stamp);
    return;
  }
  if (handle && comm.slot->handle != handle) add_handle(comm, handle);
  if (result == ncclSuccess) comm_became_ready(comm, stamp);
}

void end_all(Comm& first, const CallArgs& args, ncclResult_t result, uint64_t stamp, const ThreadState& thread) {
  const uint64_t id = thread.nested_id_known ? thread.nested_id : made_up_id(first.serial);
  for (int32_t rank = 0; rank < args.nranks; rank++) {
    Comm* comm = find_serial(first.serial + static_cast<uint32_t>(rank));
    if (!comm) continue;
    set_id(*comm, id);
    settle(*comm, failed(result) ? 0 : reinterpret_cast<uint64_t>(args.new_comm[rank]), result, stamp);
  }
}

uint32_t end_init(Call& call, Fn fn, const CallArgs& args, ncclResult_t result, uint64_t stamp, ThreadState& thread) {
  if (is_child(fn) && call.comm && failed(result)) call.comm->children.fetch_sub(1, std::memory_order_relaxed);
  if (!call.made) return 0;
  if (fn == Fn::CommInitAll) {
    end_all(*call.made, args, result, stamp, thread);
    return call.made->serial;
  }
  const uint64_t handle = args.new_comm && !failed(result) ? reinterpret_cast<uint64_t>(*args.new_comm) : 0;
  if (thread.group_depth == 0 || failed(result)) {
    settle(*call.made, handle, result, stamp);
  } else {
    // In a group the init happens at ncclGroupEnd. NCCL may have given out the handle already.
    if (handle && handle != call.old_handle) add_handle(*call.made, handle);
    GroupMember member = {};
    member.comm = call.made;
    member.new_handle = reinterpret_cast<void**>(args.new_comm);
    member.event = call.begin + 1;
    add_member(thread, member);
  }
  return call.made->serial;
}

void begin_teardown(Call& call, Fn fn, const CallArgs& args, const trace::BeginFields& f) {
  if (!call.comm) return;
  // What these cut off looks complete to CUDA before they are back, and has not completed.
  if (fn == Fn::CommAbort || fn == Fn::CommRevoke) unwatch(*call.comm);
  if (fn == Fn::CommSuspend || fn == Fn::CommResume || fn == Fn::CommRevoke) return;
  if (call.comm->slot->ended_stamp == 0) call.comm->slot->ended_stamp = f.stamp;
  // The handle goes before the call: NCCL may give it to another thread's communicator before the call is back.
  if (fn != Fn::CommFinalize) remove_handle(args.comm);
}

// A destroy that succeeded comes after everything on the communicator, by NCCL's rules.
void all_complete(trace::CommSlot& slot) {
  if (slot.coll_completed.load(std::memory_order_relaxed) == UINT64_MAX) return;
  const uint64_t collectives = slot.coll_returned.load(std::memory_order_relaxed);
  const uint64_t messages = slot.p2p_returned.load(std::memory_order_relaxed);
  slot.coll_started.store(collectives, std::memory_order_relaxed);
  slot.coll_completed.store(collectives, std::memory_order_relaxed);
  slot.p2p_started.store(messages, std::memory_order_relaxed);
  slot.p2p_completed.store(messages, std::memory_order_relaxed);
}

void end_teardown(Call& call, Fn fn, const CallArgs& args, ncclResult_t result, uint64_t stamp) {
  if (!call.comm) return;
  if (failed(result)) {
    if (fn == Fn::CommDestroy || fn == Fn::CommAbort) add_handle(*call.comm, args.comm);
    return;
  }
  if (fn == Fn::CommFinalize) set_state(*call.comm, CommState::finalized, stamp);
  if (fn == Fn::CommDestroy) unwatch(*call.comm);
  if (fn == Fn::CommDestroy) all_complete(*call.comm->slot);
  if (fn == Fn::CommDestroy) set_state(*call.comm, CommState::destroyed, stamp);
  if (fn == Fn::CommAbort) set_state(*call.comm, CommState::aborted, stamp);
  if (fn == Fn::CommRevoke) set_state(*call.comm, CommState::revoked, stamp);
}

bool is_collective_over_members(FunctionKind kind) {
  return kind == FunctionKind::init || kind == FunctionKind::teardown || kind == FunctionKind::window;
}

}  // namespace

void go_blind(Comm* comm, uint32_t bit, const char* what) {
  const uint32_t before = comm ? comm->slot->blind.fetch_or(bit, std::memory_order_relaxed) : 0;
  const uint32_t all = recorder.trace.status->blind.fetch_or(bit, std::memory_order_relaxed);
  if ((comm ? before : all) & bit) return;
  ThreadState& thread = known_thread();
  uint64_t sequence;
  trace::Record* record = trace::reserve(recorder.trace, thread.cursor, sequence);
  trace::write_mark(record, sequence, stamp_now(recorder.tsc), trace::kMarkBlind, thread.tid, comm ? comm->serial : 0,
                    thread.slot_number, what, strlen(what));
}

void begin_lifecycle(Call& call, Fn fn, FunctionKind kind, const CallArgs& args, trace::BeginFields& f) {
  if (kind == FunctionKind::init) begin_init(call, fn, args, f);
  if (kind == FunctionKind::teardown) begin_teardown(call, fn, args, f);
  Comm* counting = call.comm ? call.comm : call.made;
  if (counting && is_collective_over_members(kind)) f.seq = counting->slot->life_seq++;
}

uint32_t end_lifecycle(Call& call, Fn fn, FunctionKind kind, const CallArgs& args, ncclResult_t result, uint64_t stamp,
                       ThreadState& thread) {
  Comm* counting = call.comm ? call.comm : call.made;
  if (counting && is_collective_over_members(kind) && failed(result)) counting->slot->life_seq--;
  if (kind == FunctionKind::init) return end_init(call, fn, args, result, stamp, thread);
  if (kind == FunctionKind::teardown) end_teardown(call, fn, args, result, stamp);
  if (fn == Fn::CommWindowRegister && !failed(result) && call.comm)
    go_blind(call.comm, trace::kBlindWindow, "ncclCommWindowRegister");
  return call.comm ? call.comm->serial : 0;
}

void finish_grouped_init(Comm& comm, void** new_handle, ncclResult_t result, uint64_t stamp) {
  settle(comm, failed(result) ? 0 : reinterpret_cast<uint64_t>(*new_handle), result, stamp);
}

void comm_became_ready(Comm& comm, uint64_t stamp) {
  const KeepErrno keep;
  find_driver();
  ask_nccl(comm);
  set_state(comm, CommState::live, stamp);
}

void adopt_comm(uint64_t handle, uint64_t stamp, unsigned copy) {
  NewComm spec;
  spec.copy = copy;
  spec.stamp = stamp;
  Comm* comm = create_comm(spec, next_serials(1));
  if (!comm) return;
  add_handle(*comm, handle);
  comm_became_ready(*comm, stamp);
}

void note_unique_id(const void* id) {
  this_thread.nested_id = abi::comm_hash_of_unique_id(id);
  this_thread.nested_id_known = 1;
}

}  // namespace lockstep::shim
