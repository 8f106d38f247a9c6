// SPDX-License-Identifier: MIT
//
// What the host's own waits prove. The shim asks for completions from time to time, so that its counts lag behind, and
// a process that ends suddenly takes the rest with it. But when a wait for a stream has come back, all that was put on
// that stream before it has completed.

#pragma once

#include "interpose/trace/reader.h"

namespace lockstep {

// Raises the counts of started and completed operations of a file that has such counts.
void count_proven_completions(trace::TraceFile& file);

}  // namespace lockstep
