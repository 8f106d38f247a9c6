// SPDX-License-Identifier: MIT
//
// Wall clocks of several hosts, made one. Which of two ends came first, who fell silent, and whether all were stopped
// together is told by wall clocks, and those of two hosts may be hours apart.
//
// All members of a communicator are done making it at about one time, and make each of its calls at about one time.
// What two hosts' clocks differ by at all of these is the difference of the clocks; where they agree at any one of
// them, the rest was a rank that was late. Differences of less than two seconds are left alone.

#pragma once

#include <string>
#include <vector>

#include "tools/job/job.h"

namespace lockstep {

// Shifts all wall times of hosts whose clocks differ from that of the first process's host. Says so, a sentence a host.
std::vector<std::string> align_clocks(std::vector<Process>& processes);

void shift_wall_times(trace::TraceFile& file, int64_t by);

}  // namespace lockstep
