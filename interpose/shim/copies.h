// SPDX-License-Identifier: MIT
//
// Several copies of libnccl in one process (a framework's own and a wheel's) are several libraries with state of their
// own: a call must reach the copy its caller chose. Copy 0 is the one the loader finds by name; those that a client
// opened by a path and asks for functions get a number, a table of true functions, and a set of hooks each.

#pragma once

#include "interpose/abi/functions.h"
#include "interpose/shim/real.h"

namespace lockstep::shim {

// The hook that stands for `found` of some library; nullptr when all copies are taken: the caller then gets it bare.
void* hook_for(abi::Fn fn, void* found);
// The same for a CUDA function; nullptr when another library's is hooked already.
void* host_hook_for(unsigned row, void* found);

}  // namespace lockstep::shim
