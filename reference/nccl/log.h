// SPDX-License-Identifier: MIT
//
// NCCL's way of telling what happens. The last warning of the process is kept for ncclGetLastError whatever the
// settings; NCCL_DEBUG (VERSION, WARN, INFO), NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE say what is printed where. Lines
// have NCCL's shape, because people diff them and tools read them.

#pragma once

namespace lockstep::nccl {

// Subsystems with lines of ours; NCCL_DEBUG_SUBSYS knows NCCL's others too.
inline constexpr unsigned kInit = 1u << 0;
inline constexpr unsigned kColl = 1u << 1;
inline constexpr unsigned kEnv = 1u << 2;

__attribute__((format(printf, 1, 2))) void warn(const char* format, ...);
// As warn(), and once on stderr whatever NCCL_DEBUG says: the program wants something that is not there.
__attribute__((format(printf, 1, 2))) void warn_loudly(const char* format, ...);
__attribute__((format(printf, 2, 3))) void info(unsigned subsystem, const char* format, ...);
bool info_wanted(unsigned subsystem);

const char* last_warning();
// Once a process: by every process at INFO, by rank 0's at VERSION and WARN.
void tell_version(int rank);
// The settings are read again (ncclResetDebugInit).
void reset_log();

}  // namespace lockstep::nccl
