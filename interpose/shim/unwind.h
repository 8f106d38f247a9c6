// SPDX-License-Identifier: MIT
//
// Unwinding another thread of this process from outside of it, without stopping it, without locks, and without trusting
// a single pointer. libunwind walks the caller's own stack and is right there; a stack that may change while it is read
// needs a reader that expects that. So this reads the unwind tables (.eh_frame) through Memory and runs them itself.
//
// Of a thread that waits in the kernel only program counter and stack pointer are known. That carries through code
// compiled without frame pointers, since its tables count from the stack pointer; where a frame counts from rbp, rbp is
// looked for on the stack: the first saved frame pointer with a return address behind it.

#pragma once

#include <cstdint>

#include "interpose/shim/memory.h"

namespace lockstep::shim {

// By DWARF numbers of x86-64: 6 rbp, 7 rsp, 16 the return address.
inline constexpr unsigned kRegisters = 17, kRbp = 6, kRsp = 7, kRip = 16;
struct Registers {
  uint64_t value[kRegisters];
  uint32_t known;  // a bit each
  void set(unsigned number, uint64_t to) { value[number] = to, known |= 1u << number; }
  bool has(unsigned number) const { return known >> number & 1; }
};

// Program counters, innermost first; pcs[0] is the instruction itself, the others are return addresses.
unsigned unwind(Registers registers, Memory& memory, uint64_t* pcs, unsigned most);

// One step by the unwind tables. False when there is no table for this place or a register it needs is not known.
enum class Step { done, end, stuck };
Step step_by_tables(Registers& registers, Memory& memory, bool exact, bool& next_exact);

}  // namespace lockstep::shim
