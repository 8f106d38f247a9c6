// SPDX-License-Identifier: MIT
//
// See front.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/front.h"

#include <sys/mman.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/recorder.h"

namespace lockstep::shim {
namespace {

// NCCL's own handles are addresses; these are not.
uint64_t handle_of(uint64_t id, uint32_t tid) { return (id * 0x9e3779b97f4a7c15ull + tid) | uint64_t{1} << 63; }

}  // namespace

FrontState* front_state() {
  if (!recording()) return nullptr;
  ThreadState& thread = known_thread();
  if (!thread.front) {
    void* space = mmap(nullptr, sizeof(FrontState), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return nullptr;
    thread.front = space;
    thread.front_size = sizeof(FrontState);
  }
  return static_cast<FrontState*>(thread.front);
}

bool front_may_record() { return !recorder.hooked.load(std::memory_order_relaxed) && start_recording(); }

uint64_t front_handle(const Comm& comm) { return comm.slot->handle; }

Comm* make_front_comm(const FrontComm& facts) {
  ThreadState& thread = known_thread();
  NewComm spec;
  spec.id = facts.id;
  spec.rank = facts.rank;
  spec.nranks = facts.nranks;
  spec.name = facts.name;
  spec.stamp = stamp_now(recorder.tsc);
  Comm* comm = create_comm(spec, next_serials(1));
  if (!comm) return nullptr;
  comm->asked = 1;  // there is no handle to ask NCCL about
  comm->slot->device = facts.device;
  add_handle(*comm, handle_of(facts.id, thread.tid));
  set_state(*comm, trace::CommState::live, spec.stamp);
  return comm;
}

Comm* front_comm(const FrontComm& facts) {
  ThreadState& thread = known_thread();
  Comm* comm = find_comm(handle_of(facts.id, thread.tid), thread);
  if (!comm) comm = find_id(facts.id);
  if (!comm) return make_front_comm(facts);
  if (comm->slot->rank < 0) comm->slot->rank = facts.rank;
  if (comm->slot->nranks < 0) comm->slot->nranks = facts.nranks;
  if (comm->slot->device < 0) comm->slot->device = facts.device;
  return comm;
}

void begin_front(FrontCall& call, abi::Fn fn, const CallArgs& args) {
  call.open = true;
  call.fn = fn;
  call.kind = abi::find_function(fn)->kind;
  // Init and teardown are lifecycle calls whose communicator the front end looks after itself.
  if (call.kind == abi::FunctionKind::init || call.kind == abi::FunctionKind::teardown)
    call.kind = abi::FunctionKind::local;
  call.args = args;
  begin_call(call.call, fn, call.kind, call.args);
}

void end_front(FrontCall& call) {
  if (!call.open) return;
  call.open = false;
  end_call(call.call, call.fn, call.kind, call.args, ncclSuccess);
}

}  // namespace lockstep::shim
