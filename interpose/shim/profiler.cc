// SPDX-License-Identifier: MIT
//
// NCCL's profiler plugin, versions 5 (NCCL 2.28) and 6 (2.29): `NCCL_PROFILER_PLUGIN=/path/to/liblockstep.so`. NCCL
// looks the two structs below up by name and calls the functions in them. Of all its events we ask for those of API
// calls alone: they come on the caller's thread, inside the call, and cost nothing on the GPU. Where the hooks see the
// calls already the plugin asks for nothing.
//
// Layouts are NCCL's published plugin interface; both versions have the same fields as far as they are read here.

#include "interpose/shim/libc.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/driver.h"
#include "interpose/shim/front.h"
#include "interpose/shim/recorder.h"

namespace lockstep::shim {
namespace {

constexpr uint64_t kCollApi = 1u << 9, kP2pApi = 1u << 10;

struct Event {  // the head of ncclProfilerEventDescr_v5_t and _v6_t
  uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      const char* function;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool captured;
    } coll;
    struct {
      const char* function;
      size_t count;
      const char* datatype;
      void* stream;
      bool captured;
    } p2p;
  };
};

// "ncclFloat32" and the like.
int dtype_by_name(const char* name) {
  struct Name {
    const char* text;
    int value;
  };
  constexpr Name kNames[] = {{"ncclInt8", 0},     {"ncclChar", 0},    {"ncclUint8", 1},    {"ncclInt32", 2},
                             {"ncclInt", 2},      {"ncclUint32", 3},  {"ncclInt64", 4},    {"ncclUint64", 5},
                             {"ncclFloat16", 6},  {"ncclHalf", 6},    {"ncclFloat32", 7},  {"ncclFloat", 7},
                             {"ncclFloat64", 8},  {"ncclDouble", 8},  {"ncclBfloat16", 9}, {"ncclFloat8e4m3", 10},
                             {"ncclFloat8e5m2", 11}};
  for (const Name& known : kNames)
    if (name && strcmp(name, known.text) == 0) return known.value;
  return 255;
}

// With or without the prefix: "AllReduce", "ncclAllReduce".
const abi::FunctionInfo* function_by_name(const char* name) {
  if (!name) return nullptr;
  const abi::FunctionInfo* function = abi::find_function(strncmp(name, "nccl", 4) == 0 ? name + 4 : name);
  return function && function->hooked ? function : nullptr;
}

ncclResult_t on_init(void** context, uint64_t id, int* wanted, const char* name, int, int nranks, int rank, void*) {
  const int kept = errno;
  *context = nullptr;
  *wanted = 0;
  if (!disabled() && !(this_thread.depth & kInRecorder) && front_may_record())
    if (Comm* comm = make_front_comm({id, nranks, rank, -1, name})) {
      *context = comm;
      *wanted = static_cast<int>(kCollApi | kP2pApi);
    }
  errno = kept;
  return ncclSuccess;
}

ncclResult_t on_start(void* context, void** handle, const Event* event) {
  *handle = nullptr;
  auto* comm = static_cast<Comm*>(context);
  if (!comm || !event || (event->type != kCollApi && event->type != kP2pApi)) return ncclSuccess;
  const bool p2p = event->type == kP2pApi;
  const abi::FunctionInfo* function = function_by_name(p2p ? event->p2p.function : event->coll.function);
  const int kept = errno;
  FrontState* state = front_state();
  if (!function || !state || state->plugin_call.open || (this_thread.depth & kInRecorder)) return ncclSuccess;
  CallArgs args;
  args.front = true;
  args.comm = front_handle(*comm);
  args.count = p2p ? event->p2p.count : event->coll.count;
  args.dtype = dtype_by_name(p2p ? event->p2p.datatype : event->coll.datatype);
  args.stream = reinterpret_cast<uint64_t>(p2p ? event->p2p.stream : event->coll.stream);
  args.captured = p2p ? event->p2p.captured : event->coll.captured;
  if (abi::has_role(function->fn, abi::ArgRole::root)) args.peer = event->coll.root;
  begin_front(state->plugin_call, function->fn, args);
  *handle = &state->plugin_call;
  errno = kept;
  return ncclSuccess;
}

ncclResult_t on_stop(void* handle) {
  const int kept = errno;
  FrontState* state = handle ? front_state() : nullptr;
  if (state && handle == &state->plugin_call) end_front(state->plugin_call);  // another thread's cannot be ended here
  errno = kept;
  return ncclSuccess;
}

ncclResult_t on_state(void*, int, void*) { return ncclSuccess; }

ncclResult_t on_finalize(void* context) {
  auto* comm = static_cast<Comm*>(context);
  if (comm && recording() && comm->slot) {
    remove_handle(front_handle(*comm));
    set_state(*comm, trace::CommState::destroyed, stamp_now(recorder.tsc));
  }
  return ncclSuccess;
}

struct Plugin {  // ncclProfiler_v5_t, ncclProfiler_v6_t
  const char* name;
  ncclResult_t (*init)(void**, uint64_t, int*, const char*, int, int, int, void*);
  ncclResult_t (*start)(void*, void**, const Event*);
  ncclResult_t (*stop)(void*);
  ncclResult_t (*state)(void*, int, void*);
  ncclResult_t (*finalize)(void*);
};

}  // namespace
}  // namespace lockstep::shim

extern "C" {
__attribute__((visibility("default"))) extern const lockstep::shim::Plugin ncclProfiler_v5;
__attribute__((visibility("default"))) extern const lockstep::shim::Plugin ncclProfiler_v6;
const lockstep::shim::Plugin ncclProfiler_v5 = {"lockstep", lockstep::shim::on_init, lockstep::shim::on_start,
                                                lockstep::shim::on_stop, lockstep::shim::on_state,
                                                lockstep::shim::on_finalize};
const lockstep::shim::Plugin ncclProfiler_v6 = {"lockstep", lockstep::shim::on_init, lockstep::shim::on_start,
                                                lockstep::shim::on_stop, lockstep::shim::on_state,
                                                lockstep::shim::on_finalize};
}
