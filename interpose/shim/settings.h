// SPDX-License-Identifier: MIT
//
// Every setting of the shim, once: `lockstep run --settings` prints this table, docs/shim.md shows it and a test
// compares, config.cc reads it from the environment when recording starts.

#pragma once

namespace lockstep::shim {

struct Setting {
  const char* name;
  const char* standard;
  const char* meaning;
};

inline constexpr Setting kSettings[] = {
    {"LOCKSTEP", "1", "0 makes the preloaded library inert"},
    {"LOCKSTEP_CLOCK", "tsc", "monotonic takes time stamps by clock_gettime, as is done anyway where the processor's counter is not "
                              "steady"},
    {"LOCKSTEP_DIR", "./lockstep-traces/<run>", "folder for the trace files of all processes of a run"},
    {"LOCKSTEP_DIGEST", "0",
     "1 records digests of the inputs and outputs of collectives in memory that the host can read; or names, such as "
     "AllReduce,Broadcast"},
    {"LOCKSTEP_DIGEST_MB", "64", "larger buffers are not digested, but counted"},
    {"LOCKSTEP_FULL_MB", "4096", "most disk the events of one process may take in full mode, 1 to 65536; what comes then is "
                                 "counted as dropped"},
    {"LOCKSTEP_HANG_SECONDS", "60", "an operation or a silence this long makes a rank ask all ranks for a snapshot; 0 = never"},
    {"LOCKSTEP_MODE", "ring", "ring keeps the newest events, full keeps all of them"},
    {"LOCKSTEP_NVTX_PHASES", "", "NVTX ranges whose names begin with one of these words, separated by commas, become phases"},
    {"LOCKSTEP_RING_MB", "64", "most disk the events of one process may take, 1 to 65536; plus 17.2 for all else"},
    {"LOCKSTEP_STACKS", "1", "0 records calls without their native stacks"},
    {"LOCKSTEP_STATES", "1", "0 does not watch on the stream whether operations have started and completed"},
    {"LOCKSTEP_SUPERVISOR", "", "pid of the supervisor; set by `lockstep run`"},
    {"LOCKSTEP_RUN_ID", "", "name of the run, equal in all its processes; else taken from the launcher"},
};

}  // namespace lockstep::shim
