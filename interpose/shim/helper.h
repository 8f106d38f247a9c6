// SPDX-License-Identifier: MIT
//
// The helper thread: everything that must not wait for the job, and that the job must not wait for. Once a second (more
// often when the hang threshold is short) it beats the heart, looks at the threads it knows, keeps the ring ahead of
// its writers, notices loaded libraries, and looks after hangs. All signals are blocked in it, and it never calls CUDA
// or NCCL.

#pragma once

namespace lockstep::shim {

void start_helper();

}  // namespace lockstep::shim
