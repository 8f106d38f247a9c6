// SPDX-License-Identifier: MIT
//
// Stacks of a running process, taken from outside.
//
// Each thread is stopped by itself (PTRACE_SEIZE, PTRACE_INTERRUPT), unwound by libunwind through ptrace, and let go,
// so that a process is never stopped as a whole and no call of it ever sees a signal. A thread that does not stop in
// time (it sits in the kernel) is told by its wait channel alone. Whatever happens, a thread that was stopped is let
// go.

#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "interpose/trace/reader.h"

namespace lockstep {

// Snapshots of all threads, the main one first. Threads are left out when the deadline has passed.
std::vector<trace::Snapshot> snapshot_process(pid_t pid, uint32_t round, char why, std::chrono::milliseconds deadline);

// What is mapped executable now: a recorded module map may be older than the last dlopen.
std::vector<trace::Module> modules_of_process(pid_t pid);

}  // namespace lockstep
