// SPDX-License-Identifier: MIT
//
// The true functions behind the hooks, and who is calling.
//
// A linked program finds the real library behind us with RTLD_NEXT. A Python extension loads it into a private scope, where
// only asking for it by name without loading it (RTLD_NOLOAD) does. When neither finds it, a hook says so once and returns
// an error: it never ends the job.
//
// NCCL calls its own public functions (ncclBcast calls ncclBroadcast), some on threads of its own, and those calls come
// back to us. They are passed on unrecorded: a call counts when it comes from outside.

#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/abi/functions.h"

namespace lockstep::shim {

inline constexpr unsigned kMostFunctions = 128;  // ids in nccl_functions.def stay below
extern std::atomic<void*> real_functions[kMostFunctions];
void* find_real(abi::Fn fn);  // the slow path: looks it up, remembers it

// nullptr when there is none.
inline void* real_function(abi::Fn fn) {
  void* known = real_functions[static_cast<unsigned>(fn)].load(std::memory_order_acquire);
  return __builtin_expect(known != nullptr, 1) ? known : find_real(fn);
}

template <class F>
F real_as(abi::Fn fn) {
  return reinterpret_cast<F>(real_function(fn));
}

void* find_named(const char* name);  // any function of libnccl; remembers nothing

void say_missing(abi::Fn fn);

// The same for the CUDA functions of host_functions.def, by their row.
extern std::atomic<void*> real_host_functions[];
void* find_real_host(unsigned row);
inline void* real_host_function(unsigned row) {
  void* known = real_host_functions[row].load(std::memory_order_acquire);
  return __builtin_expect(known != nullptr, 1) ? known : find_real_host(row);
}

struct CodeRange {
  std::atomic<uintptr_t> start, end;
};
inline constexpr unsigned kNcclRanges = 4;
extern CodeRange nccl_code[kNcclRanges];  // of every libnccl seen so far
extern CodeRange own_code;                // of this library; known after the first find_real

inline bool inside(const CodeRange& range, uintptr_t address) {
  return address - range.start.load(std::memory_order_relaxed) <
         range.end.load(std::memory_order_relaxed) - range.start.load(std::memory_order_relaxed);
}
inline bool called_by_nccl(const void* return_address) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(return_address);
  for (const CodeRange& range : nccl_code) {
    if (range.start.load(std::memory_order_relaxed) == 0) return false;
    if (inside(range, address)) return true;
  }
  return false;
}

// Path of the libnccl in use, or "".
const char* nccl_path();

}  // namespace lockstep::shim
