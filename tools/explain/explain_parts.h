// SPDX-License-Identifier: MIT
//
// What explain() puts together, a file each: stacks, words, and what to check first.

#pragma once

#include <string>
#include <vector>

#include "tools/explain/symbols.h"
#include "tools/judge/finding.h"
#include "tools/judge/rules.h"

namespace lockstep {

// --- explain_summary.cc ---
std::string summary_of(const Evidence& evidence, const Finding& finding);
// "rank 2 (host a, pid 17)", "ranks 0-3"
std::string who(const Run& run, const std::vector<size_t>& ranks);
// "AllReduce #17 on tp"
std::string call_text(const Evidence& evidence, const Finding& finding);
// "; last step 5, sample shard3:1187", or nothing
std::string marks_text(const Finding& finding);
// "; ranks 0,1 have been waiting there for 41 s", or nothing
std::string waiting_text(const Evidence& evidence, const Finding& finding);

// --- explain_calls.cc ---
// Of collectives, whose calls stand in one row.
bool calls_differ(const Finding& finding);
std::string mismatch_summary(const Evidence& evidence, const Finding& finding);
std::string sizes_summary(const Evidence& evidence, const Finding& finding);

// --- explain_absent.cc ---
std::string absent_summary(const Evidence& evidence, const Finding& finding);
std::string init_nobody_summary(const Evidence& evidence, const Finding& finding);
std::string death_summary(const Evidence& evidence, const Finding& finding);
std::string missing_trace_summary(const Evidence& evidence, const Finding& finding);

// --- explain_stacks.cc ---
// Those of the culprits, and one of the others' to compare with.
void add_stacks(const Evidence& evidence, Symbolizer& symbolizer, Finding& finding);

// --- explain_next.cc ---
// One sentence, by kind.
std::string next_of(const Finding& finding);

}  // namespace lockstep
