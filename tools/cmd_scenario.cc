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
#include <thread>

#include "tools/command.h"
#include "tools/scenario/batch.h"
#include "tools/scenario/judge.h"
#include "tools/scenario/lexer.h"
#include "tools/scenario/run.h"

namespace lockstep {
namespace {

using scenario::Scenario;

struct ScenarioOptions {
  std::vector<std::string> files;
  std::string permute = "0";  // a seed, or "random"
  std::string shift = "0";    // a number of steps, or "random"
  ScenarioVariant variant;    // all but these two
  int jobs = 0;               // 0 = as many as seem good
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

// The flags that repeat a run.
std::string how_run(const ScenarioOptions& options, ScenarioVariant variant) {
  std::string text;
  if (options.variant.wrapped) variant.shift = 0, text += " --wrapped";
  if (variant.seed) text += " --permute " + std::to_string(variant.seed);
  if (variant.shift) text += " --shift " + std::to_string(variant.shift);
  if (!variant.ranks_as.empty()) text += " --ranks-as " + variant.ranks_as;
  if (variant.ranks) text += " --ranks " + std::to_string(variant.ranks);
  if (variant.restarted) text += " --restarted";
  if (variant.teardown) text += " --teardown";
  if (variant.elsewhere) text += " --elsewhere";
  if (variant.with_losses) text += " --with-losses";
  return text;
}

class Reporter {
 public:
  explicit Reporter(const ScenarioOptions& options) : options_(options) {}

  void report(const Scenario& s, const ScenarioVariant& variant, const ScenarioRun& run,
              const ScenarioOutcome& outcome) {
    total_.add(outcome.score);
    bool ok = outcome.differences.empty();
    all_right_ &= ok;
    if (options_.json) return add_json(s, variant, run, outcome);
    std::printf("%-4s  %s%s  %.1f s  %s\n", ok ? "ok" : "FAIL", s.path.c_str(), how_run(options_, variant).c_str(),
                run.seconds, outcome.verdict.c_str());
    for (const std::string& d : outcome.differences) std::printf("      %s\n", d.c_str());
    if (!ok && !run.log.empty()) std::printf("      what the job and the tools printed:\n");
    if (!ok)
      for (const std::string& line : lines_of(run.log)) std::printf("      | %s\n", line.c_str());
    if (options_.keep) std::printf("      kept: %s\n", run.folder.c_str());
    std::fflush(stdout);
  }

  int finish(size_t left_out) {
    if (options_.json) {
      document_["lockstep"] = LOCKSTEP_VERSION;
      document_["left_out"] = left_out;
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
    if (!options_.json && left_out)
      std::printf("%zu scenes cannot be played in this way and were left out\n", left_out);
    return all_right_ ? 0 : 1;
  }

 private:
  void add_json(const Scenario& s, const ScenarioVariant& variant, const ScenarioRun& run,
                const ScenarioOutcome& outcome) {
    nlohmann::json one = {{"file", s.path},
                          {"title", s.title},
                          {"source", s.source},
                          {"trap", s.trap},
                          {"run_with", how_run(options_, variant)},
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

struct NamedFile {
  std::string path;
  bool in_folder = false;  // not named itself
};

// A folder stands for the scenarios in it.
std::vector<NamedFile> all_files(const std::vector<std::string>& named) {
  std::vector<NamedFile> files;
  for (const std::string& name : named) {
    std::error_code failed;
    if (!std::filesystem::is_directory(name, failed)) {
      files.push_back({name, false});
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(name, failed))
      if (entry.path().extension() == ".hang") files.push_back({entry.path().string(), true});
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end(),
              [](const NamedFile& a, const NamedFile& b) { return a.path < b.path; });
  }
  return files;
}

// From a folder those that can be played in this way are taken; a file that is named must be one of them.
Result<std::vector<PlannedScenario>> plan_runs(const ScenarioOptions& options, size_t& left_out) {
  std::vector<PlannedScenario> plans;
  const std::vector<NamedFile> files = all_files(options.files);
  if (files.empty()) return Error{"expected scenario files, and there is no *.hang in " + options.files.front()};
  for (const NamedFile& file : files) {
    Result<Scenario> s = scenario::load_scenario(file.path);
    if (!s) return Error{s.error()};
    ScenarioVariant variant = options.variant;
    variant.seed = static_cast<uint64_t>(*number_or_random(options.permute, 999'999));
    variant.shift = static_cast<int>(*number_or_random(options.shift, 5));
    if (const std::string why = why_not(*s, variant); !why.empty()) {
      if (!file.in_folder) return Error{file.path + ": cannot be played so: " + why};
      left_out++;
      continue;
    }
    Scenario played = as_played(std::move(*s), variant);
    plans.push_back({std::move(played), variant});
  }
  return plans;
}

int jobs_for(const ScenarioOptions& options) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return options.jobs > 0 ? options.jobs : std::min(2 * cores, 8);
}

int run_scenarios(const ScenarioOptions& options) {
  const std::string& ranks_as = options.variant.ranks_as;
  if (!ranks_as.empty() && ranks_as != "threads" && ranks_as != "processes")
    return complain("expected threads or processes after --ranks-as, found \"" + ranks_as + "\"");
  if (!number_or_random(options.permute, 1) || !number_or_random(options.shift, 1))
    return complain("expected a number or \"random\" after --permute and --shift");
  size_t left_out = 0;
  Result<std::vector<PlannedScenario>> plans = plan_runs(options, left_out);
  if (!plans) return complain(plans.error());
  Result<ScenarioPrograms> programs = find_scenario_programs();
  if (!programs) return complain(programs.error());

  Reporter reporter(options);
  int broken = 0;
  play_scenarios(*programs, *plans, jobs_for(options), options.keep, [&](size_t at, const PlayedScenario& played) {
    const PlannedScenario& plan = (*plans)[at];
    if (!played.error.empty()) {
      broken = complain(played.error);
    } else {
      reporter.report(plan.scenario, plan.variant, played.run, played.outcome);
    }
  });
  const int status = reporter.finish(left_out);
  return broken ? broken : status;
}

}  // namespace

void setup_scenario(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<ScenarioOptions>();
  CLI::App* command = app.add_subcommand("scenario", "Play hang scenarios on the host runtime and check the verdicts");
  command->add_option("FILE", options->files, "Scenario files, or folders of them, such as tests/hangs")->required();
  command->add_option("--permute", options->permute, "Renumber the ranks: a seed, 0 for as written, or \"random\"");
  command->add_option("--shift", options->shift, "Put agreed steps in front: how many, or \"random\"");
  command->add_option("--ranks-as", options->variant.ranks_as, "threads or processes, whatever the file says");
  command->add_option("--ranks", options->variant.ranks, "A job of so many ranks, where the file has a line \"widen\"")
      ->check(CLI::Range(1, scenario::kMaxRanks));
  command->add_flag("--wrapped", options->variant.wrapped, "Small rings, which have wrapped before the scene begins");
  command->add_flag("--restarted", options->variant.restarted, "As the second life of a job in one folder");
  command->add_flag("--teardown", options->variant.teardown,
                    "After the verdict, let watchdogs abort some ranks and a launcher end the rest");
  command->add_flag("--elsewhere", options->variant.elsewhere, "Judge again with the traces under other names");
  command->add_flag("--with-losses", options->variant.with_losses,
                    "Judge again without the trace of each rank in turn: nobody else may be blamed");
  command->add_option("--jobs", options->jobs, "How many at a time; twice the cores, and at most 8, unless said")
      ->check(CLI::Range(1, 256));
  command->add_flag("--keep", options->keep, "Keep the folders with the traces and say where they are");
  command->add_flag("--json", options->json, "Print JSON, verdicts of diagnose included");
  command->footer(
      "Example:\n  lockstep scenario tests/hangs/missing-call-data-loader.hang --permute random --shift 3\n\n"
      "Exit status: 0 every verdict is right, 1 one differs, 2 a file cannot be used. The language: "
      "docs/scenarios.md.");
  command->callback([options, &line] { line.exit_status = run_scenarios(*options); });
}

}  // namespace lockstep
