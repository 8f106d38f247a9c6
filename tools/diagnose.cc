// SPDX-License-Identifier: MIT
#include "tools/diagnose.h"

#include "tools/explain/explain.h"
#include "tools/explain/symbols.h"

namespace lockstep {

Result<std::unique_ptr<Diagnosed>> diagnose_folder(const std::string& folder, const JudgeOptions& options,
                                                   const std::string& debug_dir) {
  Result<Job> job = load_job(folder);
  if (!job) return Error{job.error()};
  auto all = std::make_unique<Diagnosed>();
  all->job = std::move(*job);
  Run& run = all->job.runs.back();

  Symbolizer symbolizer(debug_dir);
  for (Process& process : run.processes) add_missing_symbols(process.file, symbolizer);

  all->table = match(run);
  all->evidence = std::make_unique<Evidence>(gather(run, all->table, options));
  all->diagnosis = judge(run, all->table, options, all->job.left_out.size());
  explain(*all->evidence, symbolizer, all->diagnosis);
  return all;
}

}  // namespace lockstep
