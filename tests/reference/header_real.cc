// SPDX-License-Identifier: MIT
//
// The real toolkit's half of header_test.

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

// One of the functions is old enough for the toolkit to advise against it.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#include "tests/reference/header_facts.inc"

std::map<std::string, long> real_values() { return collect_values(); }
std::map<std::string, std::string> real_types() { return collect_types(); }
