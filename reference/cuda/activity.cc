// SPDX-License-Identifier: MIT
//
// See activity.h.

#include "reference/cuda/activity.h"

#include <dlfcn.h>
#include <time.h>

#include "cuda_runtime_api.h"
#include "interpose/include/lockstep.h"
#include "reference/cuda/stream.h"

namespace lockstep::host {
namespace {

thread_local int t_graphs = 0;

// The handle the program knows the stream by; default streams of threads and branches of graphs have an address only.
const void* handle_for(const Stream& stream) {
  return stream.kind == StreamKind::legacy ? static_cast<const void*>(cudaStreamLegacy) : &stream;
}

}  // namespace

ActivitySink activity_sink() {
  static const auto sink = reinterpret_cast<ActivitySink>(dlsym(RTLD_DEFAULT, "lockstep_activity_v1"));
  return sink;
}

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void tell_activity(ActivitySink sink, const Op& op, const Stream& stream, int64_t begun, bool in_graph) {
  const Activity what = op.activity();
  if (what.kind != 0)
    sink(what.kind | (in_graph ? LOCKSTEP_ACTIVITY_IN_GRAPH : 0), handle_for(stream), begun, now_ns(), what.name);
}
void tell_activity_now(int kind, const Stream& stream, int64_t begun, const char* name) {
  if (const ActivitySink sink = activity_sink()) sink(kind, handle_for(stream), begun, now_ns(), name);
}

InGraph::InGraph() { ++t_graphs; }
InGraph::~InGraph() { --t_graphs; }
bool in_graph() { return t_graphs > 0; }

}  // namespace lockstep::host
