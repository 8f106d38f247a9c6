// SPDX-License-Identifier: MIT
//
// Tells whoever wants to know what ran when: lockstep_activity_v1 of interpose/include/lockstep.h, looked up once.
// Where nobody defines it, all this costs is the look at one pointer.

#pragma once

#include <cstdint>

namespace lockstep::host {

class Op;
class Stream;

using ActivitySink = void (*)(int kind, const void* stream, int64_t t0, int64_t t1, const char* name);

ActivitySink activity_sink();  // nullptr: nobody listens
int64_t now_ns();
// Tells of an operation that began then and is over now, if it is of a kind worth telling.
void tell_activity(ActivitySink sink, const Op& op, const Stream& stream, int64_t begun, bool in_graph);
// What happened without an operation, since then.
void tell_activity_now(int kind, const Stream& stream, int64_t begun, const char* name);

// While it lives, what the thread submits is part of a graph.
class InGraph {
 public:
  InGraph();
  ~InGraph();
  InGraph(const InGraph&) = delete;
  InGraph& operator=(const InGraph&) = delete;
};
bool in_graph();

}  // namespace lockstep::host
