// SPDX-License-Identifier: MIT
//
// NVTX: `NVTX_INJECTION64_PATH=/path/to/liblockstep.so`. NCCL pushes a range around each of its calls, in a domain
// "NCCL", named like the function, with communicator, bytes and root, peer or operator as payload; programs push ranges
// of their own, some of which become phases (LOCKSTEP_NVTX_PHASES).
//
// NVTX calls InitializeInjectionNvtx2 once, with a way to its tables of function pointers, of which we fill in those we
// want. Numbers and layouts below are NVTX's published interface, version 3.

#include "interpose/shim/libc.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/front.h"
#include "interpose/shim/marks.h"
#include "interpose/shim/recorder.h"

namespace lockstep::shim {
namespace {

using abi::Fn;

struct Attributes {  // nvtxEventAttributes_t
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type;
  int32_t payload_count;
  uint64_t payload;
  int32_t message_type;
  const void* message;
};
static_assert(sizeof(Attributes) == 48);
constexpr int32_t kAscii = 1, kRegistered = 3;
constexpr int32_t kExtendedPayload = static_cast<int32_t>(0xDFBD0009);

struct PayloadData {  // nvtxPayloadData_t
  uint64_t schema;
  size_t size;
  const void* bytes;
};

// --- names -----------------------------------------------------------------------------------------------------------

struct Domain {
  bool nccl;
};
Domain nccl_domain = {true}, other_domain = {false};

// Registered strings live as long as the process; a program registers few.
char pool[64 << 10];
std::atomic<uint32_t> pool_used;
const char kUnnamed[] = "";

const void* keep(const char* text) {
  if (!text) return kUnnamed;
  const size_t size = strlen(text) + 1;
  const uint32_t at = pool_used.fetch_add(static_cast<uint32_t>(size), std::memory_order_relaxed);
  if (at + size > sizeof pool) {
    pool_used.fetch_sub(static_cast<uint32_t>(size), std::memory_order_relaxed);
    return kUnnamed;
  }
  memcpy(pool + at, text, size);
  return pool + at;
}

const char* name_of(const Attributes* attributes) {
  if (!attributes || !attributes->message) return kUnnamed;
  if (attributes->message_type != kAscii && attributes->message_type != kRegistered) return kUnnamed;
  return static_cast<const char*>(attributes->message);
}

// --- NCCL's ranges ---------------------------------------------------------------------------------------------------

// The payloads as NCCL fills them: the communicator's hash first, then bytes, then one or two small numbers.
struct Operation {
  uint64_t comm;
  uint64_t bytes;
  int32_t first, second;
};
struct Init {
  uint64_t comm;
  int32_t nranks, rank, device;
};
struct Split {
  uint64_t comm, parent;
  int32_t nranks, rank, device, color, key;
};

template <class T>
bool read_payload(const Attributes* attributes, T& out) {
  memset(&out, 0, sizeof out);
  if (attributes->payload_type != kExtendedPayload || attributes->payload_count < 1 || !attributes->payload)
    return false;
  const auto* data = reinterpret_cast<const PayloadData*>(attributes->payload);
  if (!data->bytes || data->size < sizeof(uint64_t) || data->size == SIZE_MAX) return false;
  memcpy(&out, data->bytes, data->size < sizeof out ? data->size : sizeof out);
  return true;
}

void take_operation(Fn fn, const Attributes* attributes, CallArgs& args) {
  Operation operation;
  if (!read_payload(attributes, operation)) return;
  if (Comm* comm = operation.comm ? front_comm({operation.comm}) : nullptr) args.comm = front_handle(*comm);
  args.count = operation.bytes;
  switch (fn) {
    case Fn::AllReduce:
    case Fn::ReduceScatter: args.redop = operation.first; break;
    case Fn::Reduce:
      args.peer = operation.first;
      args.redop = operation.second;
      break;
    case Fn::Broadcast:
    case Fn::Bcast:
    case Fn::Gather:
    case Fn::Scatter:
    case Fn::Send:
    case Fn::Recv: args.peer = operation.first; break;
    default: break;
  }
}

void take_init(Fn fn, const Attributes* attributes, CallArgs& args) {
  Comm* comm = nullptr;
  if (fn == Fn::CommSplit) {
    Split split;
    if (read_payload(attributes, split) && split.comm)
      comm = front_comm({split.comm, split.nranks, split.rank, split.device});
  } else {
    Init init;
    if (read_payload(attributes, init) && init.comm)
      comm = init.nranks > 0 ? front_comm({init.comm, init.nranks, init.rank, init.device}) : front_comm({init.comm});
  }
  if (comm) args.comm = front_handle(*comm);
}

int begin_nccl(const Attributes* attributes) {
  if (FrontState* inside = front_state(); inside && inside->call_depth)
    return static_cast<int>(inside->nccl_depth++);  // NCCL's own nested call
  if (this_thread.depth & kInRecorder) return 0;    // the hooks see it
  if (!recording() && !(strncmp(name_of(attributes), "nccl", 4) == 0 && front_may_record())) return 0;
  FrontState* state = front_state();
  if (!state) return 0;
  const int level = static_cast<int>(state->nccl_depth++);
  const char* name = name_of(attributes);
  const abi::FunctionInfo* function = strncmp(name, "nccl", 4) == 0 ? abi::find_function(name + 4) : nullptr;
  if (!function || !function->hooked || !front_may_record()) return level;
  CallArgs args;
  args.front = true;
  args.dtype = ncclInt8;  // bytes are all that is told
  if (function->kind == abi::FunctionKind::init || function->kind == abi::FunctionKind::teardown)
    take_init(function->fn, attributes, args);
  else
    take_operation(function->fn, attributes, args);
  begin_front(state->range_call, function->fn, args);
  state->call_depth = state->nccl_depth;
  return level;
}

int end_nccl() {
  FrontState* state = front_state();
  if (!state || state->nccl_depth == 0) return 0;
  if (!state->call_depth && (this_thread.depth & kInRecorder)) return 0;
  const int level = static_cast<int>(state->nccl_depth) - 1;
  if (state->nccl_depth-- != state->call_depth) return level;
  state->call_depth = 0;
  const Fn fn = state->range_call.fn;
  Comm* const comm = state->range_call.call.recorded ? state->range_call.call.comm : nullptr;
  end_front(state->range_call);
  if (comm && (fn == Fn::CommDestroy || fn == Fn::CommAbort)) {
    remove_handle(front_handle(*comm));
    set_state(*comm, fn == Fn::CommDestroy ? trace::CommState::destroyed : trace::CommState::aborted,
              stamp_now(recorder.tsc));
  }
  return level;
}

// --- phases ----------------------------------------------------------------------------------------------------------

bool is_phase(const char* name) {
  const char* list = recorder.config.nvtx_phases;
  if (!recording() || !list[0] || !name[0]) return false;
  for (const char* at = list; *at;) {
    const char* end = strchr(at, ',');
    const size_t length = end ? static_cast<size_t>(end - at) : strlen(at);
    if (length && strncmp(name, at, length) == 0) return true;
    at += length + (end ? 1 : 0);
  }
  return false;
}

int push(const char* name) {
  FrontState* state = front_state();
  if (!state) return 0;
  const unsigned level = state->range_depth++;
  if (level >= FrontState::kMostRanges) return static_cast<int>(level);
  state->is_phase[level] = is_phase(name);
  if (state->is_phase[level]) {
    const trace::ThreadSlot* slot = known_thread().slot;
    trace::put_text(state->before[level], sizeof state->before[level], slot ? slot->marks.phase : "",
                    slot ? strnlen(slot->marks.phase, sizeof slot->marks.phase) : 0);
    mark(trace::kMarkPhase, 0, name);
  }
  return static_cast<int>(level);
}

int pop() {
  FrontState* state = front_state();
  if (!state) return 0;
  if (state->range_depth == 0) return -2;  // NVTX's "no push for this pop"
  const unsigned level = --state->range_depth;
  if (level < FrontState::kMostRanges && state->is_phase[level]) mark(trace::kMarkPhase, 0, state->before[level]);
  return static_cast<int>(level);
}

// --- what NVTX calls -------------------------------------------------------------------------------------------------

class KeepErrno {
 public:
  ~KeepErrno() { errno = kept_; }

 private:
  int kept_ = errno;
};

int on_domain_push(Domain* domain, const Attributes* attributes) {
  const KeepErrno keep_errno;
  if (domain != &nccl_domain) return push(name_of(attributes));
  return begin_nccl(attributes);
}
int on_domain_pop(Domain* domain) {
  const KeepErrno keep_errno;
  if (domain != &nccl_domain) return pop();
  return end_nccl();
}
const void* on_register_string(Domain*, const char* text) { return keep(text); }
Domain* on_create_domain(const char* name) { return name && strcmp(name, "NCCL") == 0 ? &nccl_domain : &other_domain; }
int on_push_ex(const Attributes* attributes) {
  const KeepErrno keep_errno;
  return push(name_of(attributes));
}
int on_push(const char* name) {
  const KeepErrno keep_errno;
  return push(name ? name : kUnnamed);
}
int on_pop() {
  const KeepErrno keep_errno;
  return pop();
}

struct Callbacks {  // NvtxExportTableCallbacks
  size_t struct_size;
  int (*module_functions)(int module, void**** out_table, unsigned* out_size);
};
constexpr uint32_t kCallbacks = 1;
constexpr int kCore = 1, kCore2 = 5;

void fill_in(const Callbacks& callbacks, int module, unsigned number, void* function) {
  void*** table = nullptr;
  unsigned size = 0;
  if (callbacks.module_functions(module, &table, &size) && table && number < size && table[number])
    *table[number] = function;
}

}  // namespace
}  // namespace lockstep::shim

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
  using namespace lockstep::shim;
  if (disabled() || !export_table) return 0;
  const auto* callbacks = static_cast<const Callbacks*>(export_table(kCallbacks));
  if (!callbacks || callbacks->struct_size < sizeof(Callbacks)) return 0;
  know_own_code();
  fill_in(*callbacks, kCore2, 4, reinterpret_cast<void*>(on_domain_push));
  fill_in(*callbacks, kCore2, 5, reinterpret_cast<void*>(on_domain_pop));
  fill_in(*callbacks, kCore2, 10, reinterpret_cast<void*>(on_register_string));
  fill_in(*callbacks, kCore2, 12, reinterpret_cast<void*>(on_create_domain));
  fill_in(*callbacks, kCore, 8, reinterpret_cast<void*>(on_push_ex));
  fill_in(*callbacks, kCore, 9, reinterpret_cast<void*>(on_push));
  fill_in(*callbacks, kCore, 11, reinterpret_cast<void*>(on_pop));
  return 1;
}
