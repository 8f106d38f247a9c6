// SPDX-License-Identifier: MIT
//
// Noticing a hang, and having all ranks show their stacks.
//
// The rank that causes a hang has no operation pending, so its own watchdog never fires. Therefore whoever waits asks
// everybody: it puts a request into the trace folder, and every process that sees one newer than the last it served
// takes a snapshot of all its threads, once. A process that merely goes quiet asks as well, but says nothing.
//
// The request is a file of one line, `snapshot.request`, made under another name and renamed:
//   lockstep-snapshot 1 <wall clock, ns> <r|q> <who> <words: what it waits for>
//
// With `lockstep run` the supervisor takes the snapshot from outside; this process only makes requests, and takes the
// snapshot itself when the supervisor has not within a few ticks.

#pragma once

namespace lockstep::shim {

void watch_for_hangs();  // one tick; helper thread only

}  // namespace lockstep::shim
