// SPDX-License-Identifier: MIT
//
// What explain() puts together, a file each: stacks, words, and what to check first.

#pragma once

#include <string>

#include "tools/explain/symbols.h"
#include "tools/judge/finding.h"
#include "tools/judge/rules.h"

namespace lockstep {

// Of collectives, whose calls stand in one row.
bool calls_differ(const Finding& finding);

// --- explain_stacks.cc ---
// Those of the culprits, and one of the others' to compare with.
void add_stacks(const Evidence& evidence, Symbolizer& symbolizer, Finding& finding);

// --- explain_next.cc ---
// One sentence, by kind.
std::string next_of(const Finding& finding);

}  // namespace lockstep
