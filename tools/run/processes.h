// SPDX-License-Identifier: MIT
//
// Processes as `lockstep run` needs them: which are ours, when they end, and how to end a whole tree.

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// A descriptor that becomes readable when the process ends; -1 = there is no such process.
int open_pidfd(pid_t pid);

// All processes below this one, nearest first.
std::vector<pid_t> descendants_of(pid_t pid);

// Asks all of them to end, and after `grace_ms` makes them. `except` is left alone.
void end_processes_below(pid_t pid, pid_t except, int grace_ms);

// The program a shell would start for this name; nothing if there is none.
std::optional<std::string> find_program(const std::string& name);

// Field 22 of /proc/PID/stat: tells a reused pid. 0 = not known.
uint64_t start_ticks_of(pid_t pid);

// The letter of /proc/PID/stat: T = stopped by a signal, t = by a debugger; 0 = there is no such process.
char state_of_process(pid_t pid);

}  // namespace lockstep
