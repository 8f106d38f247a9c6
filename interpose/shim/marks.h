// SPDX-License-Identifier: MIT
//
// Marks of the training loop, as lockstep.h and NVTX ranges give them.

#pragma once

#include <cstdint>

namespace lockstep::shim {

void mark(uint32_t kind, uint64_t value, const char* text);  // kind: trace::MarkKind

}  // namespace lockstep::shim
