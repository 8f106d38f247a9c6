// SPDX-License-Identifier: MIT
//
// `lockstep scenario FILE...`: load, play, judge, report. Each file is a small job with a known fault, or none, and the
// verdict it must get; docs/scenarios.md shows how to write one. The score over all files is the measure of the
// diagnosis: kind, culprits and call right, and nobody blamed who did nothing.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "tools/command.h"
#include "tools/scenario/lexer.h"
#include "tools/scenario_judge.h"
#include "tools/scenario_run.h"

namespace lockstep {
namespace {

using scenario::Scenario;

struct ScenarioOptions {
  std::vector<std::string> files;
  std::string permute = "0";  // a seed, or "random"
  std::string shift = "0";    // a number of steps, or "random"
  std::string ranks_as;       // "threads", "processes" or empty for what the file says
  bool keep = false, json = false;
};

int complain(const std::string& sentence) {
  std::fprintf(stderr, "lockstep scenario: %s\n", sentence.c_str());
  return 2;
}

// A number, or a random one from 1 to `largest`.
std::optional<int64_t> number_or_random(const std::string& text, int64_t largest) {
  static std::mt19937_64 random{std::random_device{}()};
  if (text == "random") return std::uniform_int_distribution<int64_t>(1, largest)(random);
  int64_t value = 0;
  if (!scenario::parse_number(text, value) || value < 0 || value > 1'000'000'000) return std::nullopt;
  return value;
}

std::vector<std::string> lines_of(const std::string& text) { return scenario::split(text, "\n"); }

// What went wrong with the run itself, whatever the verdict.
void add_run_differences(const Scenario& s, const ScenarioRun& run, ScenarioOutcome& outcome) {
  std::vector<std::string>& out = outcome.differences;
  if (run.timed_out)
    out.push_back("the job was still running after its deadline of " + std::to_string(static_cast<int>(s.deadline)) +
                  " s");
  if (!run.left_behind.empty()) out.push_back("processes outlived the job: " + run.left_behind);
  if (run.timed_out || s.expect.status.size() != 1) return;
  if (s.expect.status[0] == "hung" && s.kill_on_hang && run.run_status != 1)
    out.push_back("exit status of lockstep run: expected 1 after a hang that it ended, got " +
                  std::to_string(run.run_status));
  if (s.expect.status[0] == "healthy" && run.run_status != 0)
    out.push_back("exit status of lockstep run: expected 0 from a healthy job, got " + std::to_string(run.run_status));
}

std::string how_run(ScenarioVariant variant, const std::string& ranks_as) {
  std::string text;
  if (variant.seed) text += " --permute " + std::to_string(variant.seed);
  if (variant.shift) text += " --shift " + std::to_string(variant.shift);
  if (!ranks_as.empty()) text += " --ranks-as " + ranks_as;
  return text;
}

class Reporter {
 public:
  explicit Reporter(const ScenarioOptions& options) : options_(options) {}

  void report(const Scenario& s, ScenarioVariant variant, const ScenarioRun& run, const ScenarioOutcome& outcome) {
    total_.add(outcome.score);
    bool ok = outcome.differences.empty();
    all_right_ &= ok;
    if (options_.json) return add_json(s, variant, run, outcome);
    std::printf("%-4s  %s%s  %.1f s  %s\n", ok ? "ok" : "FAIL", s.path.c_str(),
                how_run(variant, options_.ranks_as).c_str(), run.seconds, outcome.verdict.c_str());
    for (const std::string& d : outcome.differences) std::printf("      %s\n", d.c_str());
    if (!ok && !run.log.empty()) std::printf("      what the job and the tools printed:\n");
    if (!ok)
      for (const std::string& line : lines_of(run.log)) std::printf("      | %s\n", line.c_str());
    if (options_.keep) std::printf("      kept: %s\n", run.folder.c_str());
    std::fflush(stdout);
  }

  int finish() {
    if (options_.json) {
      document_["lockstep"] = LOCKSTEP_VERSION;
      document_["score"] = {{"runs", total_.runs},
                            {"right", total_.right},
                            {"kinds", total_.kinds},
                            {"kinds_right", total_.kinds_right},
                            {"culprits", total_.culprits},
                            {"culprits_right", total_.culprits_right},
                            {"calls", total_.calls},
                            {"calls_right", total_.calls_right},
                            {"false_accusations", total_.false_accusations}};
      std::printf("%s\n", document_.dump(2).c_str());
    } else if (total_.runs > 1) {
      std::printf("score: %s\n", describe(total_).c_str());
    }
    return all_right_ ? 0 : 1;
  }

 private:
  void add_json(const Scenario& s, ScenarioVariant variant, const ScenarioRun& run, const ScenarioOutcome& outcome) {
    nlohmann::json one = {{"file", s.path},
                          {"title", s.title},
                          {"source", s.source},
                          {"permute", variant.seed},
                          {"shift", variant.shift},
                          {"ok", outcome.differences.empty()},
                          {"verdict", outcome.verdict},
                          {"differences", outcome.differences},
                          {"seconds", run.seconds}};
    if (options_.keep) one["folder"] = run.folder;
    one["diagnosis"] = nlohmann::json::parse(run.diagnosis, nullptr, false);
    if (one["diagnosis"].is_discarded()) one["diagnosis"] = nullptr;
    document_["scenarios"].push_back(std::move(one));
  }

  const ScenarioOptions& options_;
  ScenarioScore total_;
  bool all_right_ = true;
  nlohmann::json document_ = {{"scenarios", nlohmann::json::array()}};
};

// A folder stands for the scenarios in it.
std::vector<std::string> all_files(const std::vector<std::string>& named) {
  std::vector<std::string> files;
  for (const std::string& name : named) {
    std::error_code failed;
    if (!std::filesystem::is_directory(name, failed)) {
      files.push_back(name);
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(name, failed))
      if (entry.path().extension() == ".hang") files.push_back(entry.path().string());
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  }
  return files;
}

int run_scenarios(const ScenarioOptions& options) {
  if (!options.ranks_as.empty() && options.ranks_as != "threads" && options.ranks_as != "processes")
    return complain("expected threads or processes after --ranks-as, found \"" + options.ranks_as + "\"");
  if (!number_or_random(options.permute, 1) || !number_or_random(options.shift, 1))
    return complain("expected a number or \"random\" after --permute and --shift");
  std::vector<Scenario> scenarios;
  const std::vector<std::string> files = all_files(options.files);
  if (files.empty()) return complain("expected scenario files, and there is no *.hang in " + options.files.front());
  for (const std::string& file : files) {
    Result<Scenario> s = scenario::load_scenario(file);
    if (!s) return complain(s.error());
    bool threads = options.ranks_as.empty() ? s->threads : options.ranks_as == "threads";
    if (threads && !s->untraced.empty())
      return complain(file + ": untraced ranks need processes of their own, so they cannot be threads");
    scenarios.push_back(std::move(*s));
  }
  Result<ScenarioPrograms> programs = find_scenario_programs();
  if (!programs) return complain(programs.error());

  Reporter reporter(options);
  for (const Scenario& s : scenarios) {
    ScenarioVariant variant{static_cast<uint64_t>(*number_or_random(options.permute, 999'999)),
                            static_cast<int>(*number_or_random(options.shift, 5))};
    Result<ScenarioRun> run = run_scenario(*programs, s, variant, options.ranks_as);
    if (!run) return complain(run.error());
    ScenarioOutcome outcome = judge_scenario(s, variant, run->diagnosis, run->diagnose_status);
    add_run_differences(s, *run, outcome);
    if (!outcome.differences.empty()) outcome.score.right = 0;
    reporter.report(s, variant, *run, outcome);
    if (!options.keep) remove_run(*run);
  }
  return reporter.finish();
}

}  // namespace

void setup_scenario(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<ScenarioOptions>();
  CLI::App* command = app.add_subcommand("scenario", "Play hang scenarios on the host runtime and check the verdicts");
  command->add_option("FILE", options->files, "Scenario files, or folders of them, such as tests/hangs")->required();
  command->add_option("--permute", options->permute, "Renumber the ranks: a seed, 0 for as written, or \"random\"");
  command->add_option("--shift", options->shift, "Put agreed steps in front: how many, or \"random\"");
  command->add_option("--ranks-as", options->ranks_as, "threads or processes, whatever the file says");
  command->add_flag("--keep", options->keep, "Keep the folders with the traces and say where they are");
  command->add_flag("--json", options->json, "Print JSON, verdicts of diagnose included");
  command->footer(
      "Example:\n  lockstep scenario tests/hangs/missing-call-data-loader.hang --permute random --shift 3\n\n"
      "Exit status: 0 every verdict is right, 1 one differs, 2 a file cannot be used. The language: "
      "docs/scenarios.md.");
  command->callback([options, &line] { line.exit_status = run_scenarios(*options); });
}

}  // namespace lockstep
