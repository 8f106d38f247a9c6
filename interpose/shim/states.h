// SPDX-License-Identifier: MIT
//
// Started and completed: what became of an operation after its call had returned. Two events, one in front of the
// operation on its stream and one behind it, are recorded by the calling thread and asked for by a thread of the shim's
// own, the driver thread. It is the only one that asks the driver anything, because a question may block for ever; the
// helper thread with heartbeat and hang detection never does.
//
// NCCL runs the operations of one communicator one after the other, so what is known is a count: so many have started,
// so many are complete. A ring of probes a communicator holds the events, asked for in order. Of operations beyond what
// it holds, the newest has the newest probe, and the one that had it before passes unwatched and is counted: a job
// hangs at the oldest probe (its calls ran ahead of the stream) or at its last operation, and both must be known.
//
//   probe     free --take--> filling --launched--> out --asked--> free
//                             ^    \--failed, captured, nonblocking--> nothing --asked--> free
//                              \--taken for a newer operation-- out, nothing
//
// No event is recorded under capture, none for a call that NCCL answered with "in progress" (its own thread will
// enqueue it later), and all of it is off with LOCKSTEP_STATES=0.

#pragma once

#include <cstdint>

#include "interpose/shim/comms.h"

namespace lockstep::shim {

struct Probe;

// Before the operation is handed to NCCL: records the first event. nullptr = not watched.
Probe* watch_start(Comm& comm, void* stream);
// After: records the second. `launched` is false when nothing was enqueued. The counts are the communicator's after it.
void watch_launched(Probe* probe, void* stream, bool launched, uint64_t collectives, uint64_t messages);

void unwatch(Comm& comm);       // it has ended: its probes may go to another one
void start_driver_thread();     // called by the helper thread, each tick; starts it once something was watched
void forget_states();           // in the child of a fork

}  // namespace lockstep::shim
