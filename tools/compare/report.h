// SPDX-License-Identifier: MIT
//
// Two ways to print one comparison.

#pragma once

#include <string>

#include "verify/compare/compare.h"

namespace lockstep {

const char* status_name(verify::Status status);
std::string comparison_sentence(const verify::Comparison& comparison);  // the answer

std::string comparison_text(const verify::Comparison& comparison, bool all, bool colour);
std::string comparison_json(const verify::Comparison& comparison);  // docs/compare-schema.json

}  // namespace lockstep
