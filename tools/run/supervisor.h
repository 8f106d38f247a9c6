// SPDX-License-Identifier: MIT
//
// `lockstep run`, once the program is started: a thin process above it that
//
// - passes signals down and the exit status up;
// - writes into each trace it is named in how that process ended (its own child: status, signal, peak memory; others:
// that
//   they are gone), to the millisecond, since who died first is the question after a crash;
// - answers snapshot requests of the ranks: stacks of all threads from outside, with their names;
// - has the diagnosis made in a process of its own, once per request and folder, and prints the verdict if it is bad;
// - with --kill-on-hang ends everything after such a verdict.
//
// It sleeps in poll() and wakes once a second and for what happens. It leaves no process of its own behind.

#pragma once

#include "tools/run/launch.h"

namespace lockstep {

// Starts the program and stays until it has ended. Returns the exit status for the shell.
int supervise(const Launch& launch, const RunOptions& options);

}  // namespace lockstep
