// SPDX-License-Identifier: MIT
//
// How each process fared: alive, ended and how, and when it last gave a sign of life. Values only.
//
// The order of belief: the supervisor's wait status, the process's own record of a fatal signal, an exit status, and
// last the bare fact that it is gone. A copied trace has no lock to ask for; there a heartbeat that stopped long before
// the others' did is all that tells.

#pragma once

#include <string>
#include <vector>

#include "tools/job/job.h"

namespace lockstep {

// The code of a `gone` supervisor record when the process had ended before it was first looked at.
inline constexpr int kEndTimeUnknown = -1;

// A supervisor's note in a trace that it sent a signal to the job: this, the signal, and the time in nanoseconds.
inline constexpr const char* kSignalNote = "supervisor-signal ";

enum class End {
  none,      // alive, or nothing says otherwise
  clean,     // exit status 0
  status,    // another exit status
  signal,    // code = signal number
  vanished,  // gone without a record: SIGKILL, out of memory, the node
};

struct Life {
  End end = End::none;
  int code = 0;
  trace::Time when;         // of the end; for `vanished` the last sign of life
  trace::Time seen;         // last sign of life, on the process's own clocks
  bool guessed = false;     // the end is inferred from a heartbeat that stopped
  bool time_known = false;  // `when` comes from a record, not from the last heartbeat
  bool tells_exit = true;   // an end by _exit would be on record: shims note it since format 2
};

// Does the process stand still, because somebody stopped it? By the kernel's word now, else by its newest snapshot,
// when it has given no sign of life since.
enum class Stopped { no, by_signal, by_debugger };
Stopped how_stopped(const Process& process);
const char* stopped_in_words(Stopped stopped);

std::vector<Life> lives_of(const Run& run);  // by index into Run::processes

// "was killed by signal 9 (SIGKILL)", "ended with exit status 3", "ended normally (exit status 0)", ...
std::string end_in_words(const Life& life);

// Signals by which somebody outside stops a job. SIGKILL is one, and also what the out-of-memory killer sends.
bool is_request_to_stop(int signal);

const char* signal_name(int signal);

// A death this much before the next was not part of one killing. Deaths of one instant are noted up to 0.1 s apart on a
// busy machine, and launchers may take less to react.
inline constexpr int64_t kHeadStart = 400'000'000;

// What the clocks of two hosts may differ by: clocks.h leaves that much alone.
inline constexpr int64_t kClocksOfHosts = 2'000'000'000;

// Ended by something that happened to this very process: a crash, SIGKILL, the out-of-memory killer. Launchers ask the
// others to stop first, and kill only those that do not.
bool is_struck(const Life& life);

// Was the whole run stopped from outside: every process ended within seconds, and nothing tells one of them from the
// rest?
bool stopped_from_outside(const Run& run, const std::vector<Life>& lives);

}  // namespace lockstep
