// SPDX-License-Identifier: MIT
//
// What the host's own waits prove. The shim asks for completions from time to time, so that its counts lag behind, and
// a process that ends suddenly takes the rest with it. But when a wait for a stream has come back, all that was put on
// that stream before it has completed; a wait for an event proves what was there when the event was recorded, one for
// the device all its streams. Only what is certain counts: not what was captured (its graph may never have been
// launched), nor what stood in a group (it was launched by the group's end).
//
// One thing is taken on trust: that a stream is not destroyed with work on it and its handle given to another, on which
// the host then waits. That streams and events are made and destroyed is not on record.

#pragma once

#include "interpose/trace/reader.h"

namespace lockstep {

// Raises the counts of started and completed operations of a file that has such counts.
void count_proven_completions(trace::TraceFile& file);

}  // namespace lockstep
