// SPDX-License-Identifier: MIT
//
// load -> match -> judge -> explain, kept together for those who want the whole: `lockstep diagnose` and the
// supervisor.

#pragma once

#include <memory>
#include <string>

#include "tools/job/job.h"
#include "tools/judge/finding.h"
#include "tools/judge/rules.h"

namespace lockstep {

// The values point into each other, so they are kept in one place and not copied.
struct Diagnosed {
  Job job;
  Table table;
  std::unique_ptr<Evidence> evidence;
  Diagnosis diagnosis;
};

// `debug_dir`: see Symbolizer.
Result<std::unique_ptr<Diagnosed>> diagnose_folder(const std::string& folder, const JudgeOptions& options,
                                                   const std::string& debug_dir = "");

}  // namespace lockstep
