// SPDX-License-Identifier: MIT
//
// The shim's settings: one table with name, default and meaning, so that documentation, help and code cannot disagree.
// All come from the environment and are read once, when recording starts.

#pragma once

#include <cstdint>

namespace lockstep::shim {

struct Setting {
  const char* name;
  const char* standard;
  const char* meaning;
};
extern const Setting kSettings[];
extern const unsigned kSettingCount;

struct Config {
  const char* folder;      // as given; nullptr = the default one
  uint64_t ring_bytes;
  uint32_t hang_ms;
  bool stacks;
  bool states;
  bool full_mode;
  int32_t supervisor;      // pid; 0 = none
  char run_id[96];
};

bool disabled();           // LOCKSTEP=0
Config read_config();

}  // namespace lockstep::shim
