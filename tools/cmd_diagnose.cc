// SPDX-License-Identifier: MIT
//
// `lockstep diagnose DIR`: the verdict on a job, running or dead.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "tools/command.h"
#include "tools/diagnose.h"
#include "tools/report.h"

namespace lockstep {
namespace {

struct DiagnoseOptions {
  std::string folder;
  double hang_seconds = 0;
  bool json = false, strict = false;
};

int run_diagnose(const DiagnoseOptions& options) {
  JudgeOptions judging;
  if (options.hang_seconds > 0) judging.threshold_ns = static_cast<int64_t>(options.hang_seconds * 1e9);

  Result<std::unique_ptr<Diagnosed>> all = diagnose_folder(options.folder, judging);
  if (!all) {
    fmt::print(stderr, "lockstep diagnose: {}\n", all.error());
    return 2;
  }
  const Diagnosed& found = **all;
  const std::string report =
      options.json ? report_json(found.job, *found.evidence, found.diagnosis)
                   : report_text(found.job, *found.evidence, found.diagnosis, wants_colour(STDOUT_FILENO));
  std::fwrite(report.data(), 1, report.size(), stdout);
  const bool only_notes = found.diagnosis.verdict == Verdict::healthy && !found.diagnosis.findings.empty();
  return options.strict && only_notes ? 1 : exit_status_of(found.diagnosis.verdict);
}

}  // namespace

void setup_diagnose(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* command =
      app.add_subcommand("diagnose", "Say which rank left the common path, at which call, and what it does there");
  command->add_option("DIR", options->folder, "Folder of traces, as `lockstep run` printed it")->required();
  command->add_flag("--json", options->json, "Print JSON (docs/diagnose-schema.json)");
  command
      ->add_option("--hang-seconds", options->hang_seconds,
                   "Call pending longer than this hung; default: what the job was run with")
      ->check(CLI::PositiveNumber);
  command->add_flag("--strict", options->strict, "Exit status 1 for slow and idle jobs too");
  command->footer(
      "Example:\n  lockstep diagnose lockstep-traces/20260101-120000-4711\n\n"
      "Exit status: 0 healthy, 1 hung, mismatch or failed, 2 bad usage or unreadable input, 3 not judged.");
  command->callback([options, &line] { line.exit_status = run_diagnose(*options); });
}

}  // namespace lockstep
