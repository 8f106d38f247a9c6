// SPDX-License-Identifier: MIT
//
// Memory in stream order. All pools draw on the one heap; what makes them pools to a program is their accounting, and
// that freeing waits for the stream instead of the device. The memory itself is there at once: a program may not use it
// before its stream is that far, so nobody can tell.

#pragma once

namespace lockstep::host {

// A pointer that may have come from a pool is being freed by other means.
void forget_pooled(void* pointer);

}  // namespace lockstep::host
