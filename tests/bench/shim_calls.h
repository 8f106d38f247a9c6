// SPDX-License-Identifier: MIT
//
// The process that bench_shim starts for each of its measurements of calls: it has the shim from its first instruction.

#pragma once

#include <string>

namespace lockstep::bench {

// What is measured and how, from the environment; prints figures, and gives back the exit status.
int measure_calls(const std::string& folder);

// Beside the folder, which the shim alone writes to: what a call costs, for the process that started this one.
std::string result_file(const std::string& folder);

}  // namespace lockstep::bench
