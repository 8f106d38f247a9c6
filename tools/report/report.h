// SPDX-License-Identifier: MIT
//
// Two ways to print one list of findings. Both only print; what is in the list was decided before.

#pragma once

#include <string>

#include "tools/job/job.h"
#include "tools/judge/finding.h"
#include "tools/judge/rules.h"

namespace lockstep {

std::string report_json(const Job& job, const Evidence& evidence, const Diagnosis& diagnosis);
// One line a finding, or one that says there is none, for log pipelines: the finding, with the status and the run.
std::string report_jsonl(const Job& job, const Evidence& evidence, const Diagnosis& diagnosis);
std::string report_text(const Job& job, const Evidence& evidence, const Diagnosis& diagnosis, bool colour);

// Colour is for terminals, and for people who have not said no (NO_COLOR).
bool wants_colour(int fd);

}  // namespace lockstep
