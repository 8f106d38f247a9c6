// SPDX-License-Identifier: MIT
//
// Which files are mapped where, with their build ids, so that addresses in the trace can be turned into names on
// another machine and another day. Written at the first communicator and again whenever the loader's counters say that
// something was loaded or unloaded; a range already written is not repeated.

#pragma once

#include <cstdint>

namespace lockstep::shim {

void write_modules();  // cheap when nothing has changed; called by the starting thread and then by the helper only
void forget_modules();

// For unwinding, on the helper thread: the address of the unwind search table (.eh_frame_hdr) of the module with this
// code, 0 when there is none; and whether the address is code of any known module. What they answer may have been
// unloaded.
uint64_t unwind_table_of(uint64_t pc);
bool in_known_code(uint64_t pc);

}  // namespace lockstep::shim
