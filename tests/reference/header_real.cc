// SPDX-License-Identifier: MIT
//
// The real toolkit's half of header_test.

#include <cuda_runtime_api.h>

#include "tests/reference/header_facts.inc"

std::map<std::string, long> real_values() { return collect_values(); }
std::map<std::string, std::string> real_types() { return collect_types(); }
