// SPDX-License-Identifier: MIT
//
// nccl_functions.def as a table for programs: what every function is called, which id it has in a trace, since when NCCL
// has it, and what its arguments mean. Header only, no library needed, so the shim may use it as well as the tools.

#pragma once

#include <cstdint>
#include <string_view>

#include "foreach.h"

namespace lockstep::abi {

enum class FunctionKind : uint8_t {
  local,        // touches no communicator
  init,         // makes a communicator; collective over its members
  teardown,     // finalize, destroy, abort, revoke, suspend, resume
  query,        // asks a communicator something; local
  memory,       // allocation and buffer registration
  window,       // symmetric windows: collective, and data may move later without any call we could see
  redop,        // reduction operators made at run time
  collective,   // enqueued, matched by order over the whole communicator
  p2p,          // enqueued, matched by order per (peer, direction)
  onesided,     // put, signal, wait
  group_start,
  group_end,
  param,        // library parameters
};

enum class ArgRole : uint8_t {
  other, out, in,
  send_buffer, recv_buffer, count, bytes, dtype, redop, root, peer, comm, stream,
  new_comm, new_comms, nranks, rank, unique_id, unique_ids, id_count, config, devices, color, key,
  excluded, excluded_count, flags,
};

// One number a function, the same in every trace file ever written.
enum class Fn : uint16_t {
  none = 0,
#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...) name = id,
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "nccl_functions.def"
};

struct FunctionInfo {
  Fn fn;
  const char* name;       // without the "nccl" prefix, as NCCL's own log lines have it: "AllReduce"
  uint32_t since;         // NCCL_VERSION_CODE of the first release with it; 21000 = 2.10 or older
  bool hooked;
  FunctionKind kind;
  const char* signature;  // for documentation: "(const void* sendbuff, ...)"
};

namespace detail {
enum class Hook : bool { untouched = false, hooked = true };
}

inline constexpr FunctionInfo kFunctions[] = {
#define LOCKSTEP_STR_(...) #__VA_ARGS__
#define LOCKSTEP_STR(...) LOCKSTEP_STR_(__VA_ARGS__)
#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...)                                         \
  {Fn::name, #name, since, static_cast<bool>(detail::Hook::hook), FunctionKind::kind,                   \
   LOCKSTEP_STR(LOCKSTEP_PARAMS(__VA_ARGS__))},
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "nccl_functions.def"
#undef LOCKSTEP_STR
#undef LOCKSTEP_STR_
};

// nullptr for an id this build does not know (a trace from a newer Lockstep).
constexpr const FunctionInfo* find_function(uint16_t id) {
  for (const FunctionInfo& f : kFunctions)
    if (static_cast<uint16_t>(f.fn) == id) return &f;
  return nullptr;
}
constexpr const FunctionInfo* find_function(Fn fn) { return find_function(static_cast<uint16_t>(fn)); }
constexpr const FunctionInfo* find_function(std::string_view name) {
  for (const FunctionInfo& f : kFunctions)
    if (name == f.name) return &f;
  return nullptr;
}

// "float32", "int8", ... as PyTorch and the verdicts write them; "dtype-N" never appears in a legal trace.
constexpr const char* dtype_name(int dtype) {
  constexpr const char* names[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",       "uint64",
                                   "float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
  return dtype >= 0 && dtype < 12 ? names[dtype] : "unknown";
}
// Bytes of one element; 0 for an unknown type.
constexpr unsigned dtype_size(int dtype) {
  constexpr unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return dtype >= 0 && dtype < 12 ? sizes[dtype] : 0;
}
// Operators made by ncclRedOpCreatePreMulSum have no number that peers share, so all of them read "premulsum".
constexpr const char* redop_name(int op) {
  constexpr const char* names[] = {"sum", "prod", "max", "min", "avg"};
  if (op < 0) return "unknown";
  return op < 5 ? names[op] : "premulsum";
}
constexpr const char* result_name(int result) {
  constexpr const char* names[] = {"success",       "unhandled-cuda-error", "system-error", "internal-error", "invalid-argument",
                                   "invalid-usage", "remote-error",         "in-progress",  "timeout"};
  return result >= 0 && result < 9 ? names[result] : "unknown";
}

// Which arguments a function has, for code that must know whether "root" or "redop" means anything for it.
constexpr bool has_role(Fn fn, ArgRole role) {
  switch (fn) {
#define LOCKSTEP_IS_ROLE(triple) || role == ArgRole::LOCKSTEP_ARG_ROLE(triple)
#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...) \
  case Fn::name: return false LOCKSTEP_EACH(LOCKSTEP_IS_ROLE __VA_OPT__(, ) __VA_ARGS__);
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "nccl_functions.def"
#undef LOCKSTEP_IS_ROLE
    case Fn::none: break;
  }
  return false;
}

}  // namespace lockstep::abi
