// SPDX-License-Identifier: MIT
//
// host_functions.def as a table: the CUDA calls that matter to a hang, by number, kind and name.

#pragma once

#include <cstdint>

#include "foreach.h"

namespace lockstep::abi {

enum class HostKind : uint8_t {
  wait,   // blocks until a stream, an event or the device is done
  copy,   // a synchronous copy: waits for the legacy default stream
  order,  // puts an event into a stream, or makes a stream wait for one; returns at once
  graph,  // launches a captured graph, and with it the NCCL calls captured in it
};

enum class HostLibrary : uint8_t { runtime, driver };

struct HostFunction {
  uint16_t id;
  HostKind kind;
  HostLibrary library;
  const char* symbol;
  const char* name;
};

inline constexpr HostFunction kHostFunctions[] = {
#define LOCKSTEP_HOST(id, kind, library, symbol, Name, ...) {id, HostKind::kind, HostLibrary::library, #symbol, #Name},
#include "host_functions.def"
};

// One number a row of the list, for tables in memory; trace files have `id`.
enum class HostRow : unsigned {
#define LOCKSTEP_HOST(id, kind, library, symbol, Name, ...) symbol,
#include "host_functions.def"
};
inline constexpr unsigned kHostRows = sizeof kHostFunctions / sizeof kHostFunctions[0];

// nullptr for an id this build does not know (a trace from a newer Lockstep).
constexpr const HostFunction* find_host_function(uint16_t id) {
  for (const HostFunction& f : kHostFunctions)
    if (f.id == id) return &f;
  return nullptr;
}

}  // namespace lockstep::abi
