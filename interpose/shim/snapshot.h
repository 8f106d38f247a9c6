// SPDX-License-Identifier: MIT
//
// Stacks of all threads of this process, taken from inside, where no supervisor does it from outside.

#pragma once

#include <cstdint>

namespace lockstep::shim {

void take_snapshot(uint32_t round, char why);  // helper thread only

}  // namespace lockstep::shim
