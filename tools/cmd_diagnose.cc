// SPDX-License-Identifier: MIT
//
// `lockstep diagnose DIR`: the verdict on a job, running or dead.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/command.h"
#include "tools/diagnose.h"
#include "tools/explain/findings_page.h"
#include "tools/printable.h"
#include "tools/report/report.h"

namespace lockstep {
namespace {

struct DiagnoseOptions {
  std::string folder;
  double hang_seconds = 0;
  std::optional<std::string> explain;
  std::string debug_dir;
  bool json = false, jsonl = false, strict = false;
};

// The page is for people; --json and --jsonl put it into an object, for those who show it elsewhere.
int run_explain(const DiagnoseOptions& options, const std::string& kind) {
  const std::string page = findings_section(kind);
  if (page.empty()) {
    std::string known;
    for (const std::string& name : kind_names()) known += (known.empty() ? "" : ", ") + name;
    fmt::print(stderr, "lockstep diagnose: \"{}\" is no kind of finding; known are {}\n", printable(kind), known);
    return 2;
  }
  const nlohmann::ordered_json object{{"kind", kind}, {"text", page}};
  const std::string text = options.json ? object.dump(1) + "\n" : options.jsonl ? object.dump() + "\n" : page;
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

int run_diagnose(const DiagnoseOptions& options) {
  if (options.json && options.jsonl) {
    fmt::print(stderr, "lockstep diagnose: --json and --jsonl are two forms of one report; expected one of them\n");
    return 2;
  }
  if (options.explain) return run_explain(options, *options.explain);
  if (options.folder.empty()) {
    fmt::print(stderr, "lockstep diagnose: expected DIR, the folder of traces that `lockstep run` printed\n");
    return 2;
  }
  JudgeOptions judging;
  if (options.hang_seconds > 0) judging.threshold_ns = static_cast<int64_t>(options.hang_seconds * 1e9);

  Result<std::unique_ptr<Diagnosed>> all = diagnose_folder(options.folder, judging, options.debug_dir);
  if (!all) {
    fmt::print(stderr, "lockstep diagnose: {}\n", printable(all.error()));
    return 2;
  }
  const Diagnosed& found = **all;
  const std::string report =
      options.jsonl  ? report_jsonl(found.job, *found.evidence, found.diagnosis)
      : options.json ? report_json(found.job, *found.evidence, found.diagnosis)
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
  command->add_option("DIR", options->folder, "Folder of traces, as `lockstep run` printed it");
  command->add_flag("--json", options->json, "Print JSON (docs/diagnose-schema.json)");
  command
      ->add_option("--hang-seconds", options->hang_seconds,
                   "Call pending longer than this hung; default: what the job was run with")
      ->check(sane_seconds());
  command->add_flag("--jsonl", options->jsonl, "Print one line of JSON a finding, for log pipelines");
  command
      ->add_option("--explain", options->explain, "Say what a kind of finding means, and its usual cure; needs no DIR")
      ->type_name("KIND");
  add_debug_dir(*command, options->debug_dir);
  command->add_flag("--strict", options->strict, "Exit status 1 for slow and idle jobs too");
  command->footer(
      "Example:\n  lockstep diagnose lockstep-traces/20260101-120000-4711\n"
      "  lockstep diagnose --explain missing-call\n\n"
      "Exit status: 0 healthy, 1 hung, mismatch or failed, 2 bad usage or unreadable input, 3 not judged.");
  command->callback([options, &line] { line.exit_status = run_diagnose(*options); });
}

}  // namespace lockstep
