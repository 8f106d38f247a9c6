// SPDX-License-Identifier: MIT
//
// The shim's settings as read from the environment, once, when recording starts. Their table is in settings.h.

#pragma once

#include <cstdint>

namespace lockstep::shim {

struct Config {
  const char* folder;      // as given; nullptr = the default one
  uint64_t ring_bytes;
  uint32_t hang_ms;
  bool stacks;
  bool clock_gettime;      // even where the processor's counter is steady
  bool states;
  bool full_mode;
  char digest[256];        // as given; empty or "0" = none
  char nvtx_phases[256];   // as given
  uint64_t digest_bytes;   // of the largest buffer that is digested
  int32_t supervisor;      // pid; 0 = none
  char run_id[96];
};

bool disabled();           // LOCKSTEP=0
Config read_config();

}  // namespace lockstep::shim
