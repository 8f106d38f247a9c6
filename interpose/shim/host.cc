// SPDX-License-Identifier: MIT
//
// Hooks of the CUDA calls by which a host thread waits for streams, orders them, or launches graphs, made from the list
// in host_functions.def. They record only while recording is on, that is from the first communicator on, and only what
// the job itself calls: waits inside a hooked NCCL call, inside another hooked host call (the runtime calls the
// driver), or made by NCCL's own code are passed on.
//
// A program may have no CUDA at all, and must not notice that these names exist now: with no real function behind it a
// hook returns 3, which both the runtime and the driver read as "not initialised".
//
// Calls of kind `order` come back at once and there are many of them: they have one record, the others a begin and an
// end.

#include "interpose/shim/libc.h"

#include <errno.h>
#include <string.h>

#include <type_traits>

#include "interpose/abi/foreach.h"
#include "interpose/abi/host_functions.h"
#include "interpose/shim/calls.h"
#include "interpose/shim/clock.h"
#include "interpose/shim/copies.h"
#include "interpose/shim/real.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/stacks.h"
#include "interpose/shim/thread.h"
#include "interpose/trace/writer.h"

namespace lockstep::shim {
namespace {

using abi::HostKind;

constexpr int kNotInitialised = 3;

struct HostArgs {
  uint64_t object = 0, other = 0, bytes = 0;
};

enum class HostRole { object, other, bytes, pass };

template <HostRole role, class T>
inline void take_host(HostArgs& args, const T& value) {
  if constexpr (role == HostRole::object) args.object = reinterpret_cast<uint64_t>(value);
  if constexpr (role == HostRole::other) args.other = reinterpret_cast<uint64_t>(value);
  if constexpr (role == HostRole::bytes) args.bytes = value;
}

bool passes_unseen(const void* return_address) {
  return !recording() || this_thread.depth != 0 || called_by_nccl(return_address);
}

// What the hook keeps while the real function runs.
struct HostCall {
  uint64_t begin;
  trace::Record* record;
  uint32_t epoch;
};

void begin_host(HostCall& call, const abi::HostFunction& function, const HostArgs& args) {
  ThreadState& thread = known_thread();
  thread.depth = kInRecorder;
  call.epoch = recorder.epoch.load(std::memory_order_relaxed);
  trace::HostFields f;
  f.stamp = stamp_now(recorder.tsc);
  f.fn = function.id;
  f.tid = thread.tid;
  f.object = args.object;
  f.other = args.other;
  f.bytes = args.bytes;
  f.native_stack = function.kind == HostKind::order ? 0 : capture_stack();
  f.comm_calls = thread.comm_calls;
  f.thread_slot = thread.slot_number;
  const MarksNow marks = marks_of(thread);
  f.step = marks.step;
  f.mark_bits = marks.bits;
  call.record = trace::reserve(recorder.trace, thread.cursor, call.begin);
  trace::write_host_begin(call.record, call.begin, f);
  trace::Status& status = *recorder.trace.status;
  if (function.kind == HostKind::graph) status.graph_launches.fetch_add(1, std::memory_order_relaxed);
  if (function.kind == HostKind::order) return;
  if (function.kind != HostKind::graph) status.host_waits.fetch_add(1, std::memory_order_relaxed);
  if (thread.slot) {
    thread.slot->wait_object = args.object;
    thread.slot->wait_fn = function.id;
    thread.slot->wait_stamp.store(f.stamp, std::memory_order_relaxed);
    thread.slot->open_wait.store(call.begin + 1, std::memory_order_release);
  }
}

void end_host(const HostCall& call, const abi::HostFunction& function, int result) {
  if (call.epoch != recorder.epoch.load(std::memory_order_relaxed)) return;  // forked in between
  ThreadState& thread = this_thread;
  const uint64_t stamp = stamp_now(recorder.tsc);
  if (trace::owns(thread.cursor, call.begin)) {
    trace::end_in_place(call.record, call.begin, stamp, result, 0);
  } else {
    uint64_t sequence;
    trace::Record* record = trace::reserve(recorder.trace, thread.cursor, sequence);
    trace::write_host_end(record, sequence, stamp, function.id, thread.tid, call.begin, result);
  }
  if (thread.slot) thread.slot->open_wait.store(0, std::memory_order_release);
}

template <unsigned row, class Real, class... Args>
inline int run_host(const void* return_address, const HostArgs& args, Args... given) {
  constexpr const abi::HostFunction& function = abi::kHostFunctions[row];
  const auto real = reinterpret_cast<Real>(real_host_function(row));
  if (__builtin_expect(!real, 0)) return kNotInitialised;
  if (passes_unseen(return_address)) return real(given...);
  int& error = errno;
  int kept = error;
  HostCall call;
  begin_host(call, function, args);
  error = kept;
  ThreadState& thread = this_thread;
  thread.depth = kInHostCall;  // NCCL called from a signal handler in here is recorded, a nested wait is not
  const int result = real(given...);
  thread.depth = kInRecorder;
  kept = error;
  if constexpr (function.kind != HostKind::order) end_host(call, function, result);
  thread.depth = 0;
  error = kept;
  return result;
}

}  // namespace
}  // namespace lockstep::shim

#define LOCKSTEP_TAKE_HOST(triple) \
  take_host<HostRole::LOCKSTEP_ARG_ROLE(triple)>(host_args, LOCKSTEP_ARG_NAME(triple));

#define LOCKSTEP_HOST(id, kind, library, symbol, Name, ...)                                    \
  extern "C" __attribute__((visibility("default"))) int symbol LOCKSTEP_PARAMS(__VA_ARGS__) {  \
    using namespace lockstep::shim;                                                            \
    using Real = int(*) LOCKSTEP_PARAMS(__VA_ARGS__);                                          \
    HostArgs host_args;                                                                        \
    LOCKSTEP_EACH(LOCKSTEP_TAKE_HOST __VA_OPT__(, ) __VA_ARGS__)                               \
    return run_host<static_cast<unsigned>(lockstep::abi::HostRow::symbol), Real>(              \
        __builtin_return_address(0),                                                           \
        host_args __VA_OPT__(, ) LOCKSTEP_LIST(LOCKSTEP_ARG_NAME __VA_OPT__(, ) __VA_ARGS__)); \
  }
#include "interpose/abi/host_functions.def"

namespace lockstep::shim {
namespace {

void* const host_hooks[] = {
#define LOCKSTEP_HOST(id, kind, library, symbol, Name, ...) reinterpret_cast<void*>(&::symbol),
#include "interpose/abi/host_functions.def"
};

}  // namespace

void* host_hook_for(unsigned row, void* found) {
  void* known = nullptr;
  if (!real_host_functions[row].compare_exchange_strong(known, found, std::memory_order_acq_rel) && known != found)
    return nullptr;
  return host_hooks[row];
}

}  // namespace lockstep::shim
