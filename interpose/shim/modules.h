// SPDX-License-Identifier: MIT
//
// Which files are mapped where, with their build ids, so that addresses in the trace can be turned into names on another
// machine and another day. Written at the first communicator and again whenever the loader's counters say that something
// was loaded or unloaded; a range already written is not repeated.

#pragma once

namespace lockstep::shim {

void write_modules();  // cheap when nothing has changed; called by the starting thread and then by the helper only
void forget_modules();

}  // namespace lockstep::shim
