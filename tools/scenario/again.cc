// SPDX-License-Identifier: MIT
//
// The traces of one run, judged again. A verdict must come from what is in the files: not from their names or the order
// in which a folder lists them, and where one is lost, not from the guess that those that are there are all there were.

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "interpose/trace/attach.h"
#include "interpose/trace/format.h"
#include "tools/report/verdict_form.h"
#include "tools/scenario/run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> traces_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, failed))
    if (entry.path().extension() == trace::kFileSuffix) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void add_differences(const std::string& when, const ScenarioOutcome& again, ScenarioOutcome& outcome) {
  for (const std::string& difference : again.differences) outcome.differences.push_back(when + ": " + difference);
  outcome.score.false_accusations += again.score.false_accusations;
}

// Moves every trace to another name, each second one into a folder of its own.
void rename_all(const fs::path& folder, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<fs::path> files = traces_below(folder);
  std::shuffle(files.begin(), files.end(), random);
  for (size_t i = 0; i < files.size(); i++) {
    const fs::path home = i % 2 ? folder / ("node" + std::to_string(random() % 1000)) : folder;
    std::error_code failed;
    fs::create_directories(home, failed);
    fs::rename(files[i], home / (std::to_string(i) + "-of-somebody" + trace::kFileSuffix), failed);
  }
}

// By the rank that the launcher gave the process. In a folder with several lives of a job, of the last life.
std::map<int, fs::path> trace_of_each_rank(const fs::path& folder) {
  std::map<int, std::pair<int64_t, fs::path>> newest;
  for (const fs::path& file : traces_below(folder)) {
    const Result<trace::Attachment> trace = trace::Attachment::open(file);
    if (!trace || trace->header().env_rank < 0) continue;
    auto& [opened, path] = newest[trace->header().env_rank];
    if (opened > trace->header().opened_wall_ns) continue;
    opened = trace->header().opened_wall_ns;
    path = file;
  }
  std::map<int, fs::path> files;
  for (const auto& [rank, entry] : newest) files[rank] = entry.second;
  return files;
}

void hold_to_schema(const std::string& how, const JudgedFolder& judged, ScenarioOutcome& outcome) {
  for (const std::string& complaint : form_complaints(judged.diagnosis))
    outcome.differences.push_back(how + ": the verdict's JSON does not keep to the schema: " + complaint);
}

}  // namespace

void judge_again(const ScenarioPrograms& programs, const scenario::Scenario& s, const ScenarioVariant& variant,
                 const ScenarioRun& run, ScenarioOutcome& outcome) {
  if (scenario::asks_for_judge(s)) return;  // its traces have changed since
  const fs::path traces = fs::path(run.folder) / "traces";
  if (variant.elsewhere) {
    rename_all(traces, variant.seed);
    const JudgedFolder judged = diagnose(programs, traces);
    hold_to_schema("traces under other names", judged, outcome);
    add_differences("traces under other names", judge_scenario(s, variant, judged.diagnosis, judged.status), outcome);
  }
  if (!variant.with_losses || variant.restarted) return;
  const std::map<int, fs::path> files = trace_of_each_rank(traces);
  if (files.size() < 2) return;  // ranks that are threads share one
  for (const auto& [rank, file] : files) {
    std::error_code failed;
    const fs::path aside = fs::path(run.folder) / "lost";
    fs::rename(file, aside, failed);
    const JudgedFolder judged = diagnose(programs, traces);
    fs::rename(aside, file, failed);
    const std::string how = "without the trace of rank " + std::to_string(rank);
    hold_to_schema(how, judged, outcome);
    add_differences(how, judge_with_loss(s, variant, rank, judged.diagnosis, judged.status), outcome);
  }
}

}  // namespace lockstep
