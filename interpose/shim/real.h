// SPDX-License-Identifier: MIT
//
// The true functions behind the hooks, and who is calling.
//
// A linked program finds the real library behind us with RTLD_NEXT. A Python extension loads it into a private scope,
// where only asking for it by name without loading it (RTLD_NOLOAD) does. When neither finds it, a hook says so once
// and returns an error: it never ends the job.
//
// NCCL calls its own public functions (ncclBcast calls ncclBroadcast), some on threads of its own, and those calls come
// back to us. They are passed on unrecorded: a call counts when it comes from outside.

#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/abi/functions.h"

namespace lockstep::shim {

inline constexpr unsigned kMostFunctions = 128;  // ids in nccl_functions.def stay below
inline constexpr unsigned kCopies = 16;          // of libnccl in one process that are told apart
inline constexpr unsigned kHookedCopies = 4;     // of them with hooks of their own; see copies.h
extern std::atomic<void*> real_functions[kCopies][kMostFunctions];
void* find_real(unsigned copy, abi::Fn fn);  // the slow path: looks it up, remembers it

// nullptr when it was not looked up yet.
__attribute__((always_inline)) inline void* known_function(unsigned copy, abi::Fn fn) {
  return real_functions[copy][static_cast<unsigned>(fn)].load(std::memory_order_acquire);
}
// nullptr when there is none.
__attribute__((always_inline)) inline void* real_function(unsigned copy, abi::Fn fn) {
  void* known = known_function(copy, fn);
  return __builtin_expect(known != nullptr, 1) ? known : find_real(copy, fn);
}

template <class F>
F real_as(unsigned copy, abi::Fn fn) {
  return reinterpret_cast<F>(real_function(copy, fn));
}

// The copy this function belongs to, by a new number when it was not seen before; kCopies = there are too many.
unsigned copy_of(void* function);

void* find_symbol(void* handle, const char* name);  // the true dlsym
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
extern CodeRange nccl_code[kCopies];  // of every libnccl seen so far
extern std::atomic<unsigned> nccl_copies;  // 1 + the highest copy with a range
extern CodeRange own_code;            // of this library; known after know_own_code
void know_own_code();

__attribute__((always_inline)) inline bool inside(const CodeRange& range, uintptr_t address) {
  const uintptr_t start = range.start.load(std::memory_order_relaxed);
  return address - start < range.end.load(std::memory_order_relaxed) - start;
}
// The copy whose code this address is in; kCopies = none.
unsigned other_copy_around(uintptr_t address);
__attribute__((always_inline)) inline unsigned copy_around(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (inside(nccl_code[0], at)) return 0;
  return __builtin_expect(nccl_copies.load(std::memory_order_relaxed) == 1, 1) ? kCopies : other_copy_around(at);
}
// The same in the usual case, that there is one copy: false may mean that it has to be asked.
__attribute__((always_inline)) inline bool is_outside(const void* address) {
  return !inside(nccl_code[0], reinterpret_cast<uintptr_t>(address)) && nccl_copies.load(std::memory_order_relaxed) == 1;
}
inline bool called_by_nccl(const void* return_address) { return copy_around(return_address) != kCopies; }

// The first copy that the job has called, and its path, or "".
unsigned copy_in_use();
const char* nccl_path();

}  // namespace lockstep::shim
