// SPDX-License-Identifier: MIT
//
// See unwind.h: steps by the tables, and what is tried when they do not carry on.

#include "interpose/shim/libc.h"

#include "interpose/shim/unwind.h"

#include "interpose/shim/modules.h"

namespace lockstep::shim {
namespace {

constexpr unsigned kMostGuesses = 8;
constexpr uint64_t kMostFrameBytes = 1u << 20;

// Does a call instruction end here? A direct one is e8 and four bytes; an indirect one ff with 2 in its middle three
// bits, two to seven bytes long.
bool after_call(Memory& memory, uint64_t pc) {
  uint8_t before[7];
  if (!memory.read(pc - sizeof before, before, sizeof before)) return false;
  if (before[2] == 0xe8) return true;
  constexpr unsigned kLengths[] = {2, 3, 4, 6, 7};
  for (unsigned length : kLengths)
    if (before[7 - length] == 0xff && (before[8 - length] >> 3 & 7) == 2) return true;
  return false;
}

bool is_return_address(Memory& memory, uint64_t value) { return in_known_code(value) && after_call(memory, value); }

// The frame pointer of the function that is at sp: the first place above that holds a saved one (it points further up)
// with a return address behind it.
bool guess_frame_pointer(Registers& registers, Memory& memory) {
  const uint64_t sp = registers.value[kRsp];
  for (uint64_t at = sp; at + 16 <= memory.stack_end(); at += 8) {
    uint64_t saved, address;
    if (!memory.get(at, saved) || !memory.get(at + 8, address)) return false;
    if (saved <= at || saved - at > kMostFrameBytes || saved % 8 != 0) continue;
    if (!is_return_address(memory, address)) continue;
    registers.set(kRbp, at);
    return true;
  }
  return false;
}

// No table at all, as for code made at run time: by the frame pointer where there is one.
bool step_by_frame_pointer(Registers& registers, Memory& memory) {
  if (!registers.has(kRbp) && !guess_frame_pointer(registers, memory)) return false;
  const uint64_t frame = registers.value[kRbp];
  uint64_t saved, address;
  if (frame < registers.value[kRsp] || !memory.get(frame, saved) || !memory.get(frame + 8, address)) return false;
  if (!is_return_address(memory, address)) return false;
  registers.known = 0;
  registers.set(kRip, address);
  registers.set(kRsp, frame + 16);
  if (saved > frame && saved - frame <= kMostFrameBytes) registers.set(kRbp, saved);
  return true;
}

bool guess(Registers& registers, Memory& memory, unsigned& guesses) {
  if (++guesses > kMostGuesses) return false;
  const bool has_table = unwind_table_of(registers.value[kRip] - 1) != 0;
  // With tables, all they lacked was rbp: find it and let them go on.
  if (has_table && !registers.has(kRbp)) return guess_frame_pointer(registers, memory);
  return step_by_frame_pointer(registers, memory);
}

}  // namespace

unsigned unwind(Registers registers, Memory& memory, uint64_t* pcs, unsigned most) {
  unsigned depth = 0, guesses = 0;
  bool exact = true;
  while (depth < most) {
    if (depth == 0 || pcs[depth - 1] != registers.value[kRip] || guesses == 0) pcs[depth++] = registers.value[kRip];
    const uint64_t sp = registers.value[kRsp], pc = registers.value[kRip];
    bool next_exact = false;
    Step step = step_by_tables(registers, memory, exact, next_exact);
    if (step == Step::stuck && guess(registers, memory, guesses)) {
      if (registers.value[kRip] != pc) {
        exact = false;
        continue;
      }
      step = step_by_tables(registers, memory, exact, next_exact);
    }
    if (step != Step::done) break;
    if (registers.value[kRsp] <= sp) break;  // stacks grow down: anything else goes round in circles
    exact = next_exact;
  }
  return depth;
}

}  // namespace lockstep::shim
