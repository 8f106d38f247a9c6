// SPDX-License-Identifier: MIT

#include "tools/scenario/teardown.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "tools/run/processes.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Whoever prints a verdict leaves a mark of this name in the folder of the traces.
std::set<std::string> marks_in(const std::string& traces) {
  std::set<std::string> marks;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(traces, none))
    if (std::string name = entry.path().filename(); name.rfind(".printed-", 0) == 0) marks.insert(std::move(name));
  return marks;
}

std::vector<std::string> command_line_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

bool is_player(const std::vector<std::string>& words) {
  return !words.empty() && fs::path(words[0]).filename() == "lockstep-scene";
}

// Which rank of the scene a process plays; nothing for the launcher and for strangers.
std::optional<int> rank_of(const std::vector<std::string>& words) {
  const auto flag = std::find(words.begin(), words.end(), "--rank");
  if (!is_player(words) || flag == words.end() || flag + 1 == words.end()) return std::nullopt;
  return std::atoi((flag + 1)->c_str());
}

}  // namespace

ScenarioTeardown::ScenarioTeardown(pid_t run, std::string traces, const scenario::Scenario& scenario, uint64_t seed)
    : run_(run), traces_(std::move(traces)), old_marks_(marks_in(traces_)), random_(seed) {
  for (const std::vector<int>& set : scenario.expect.culprits) blamed_.insert(set.begin(), set.end());
  blamed_.insert(scenario.expect.also_culprits.begin(), scenario.expect.also_culprits.end());
}

// One at least, and each other with an even chance.
void ScenarioTeardown::abort_some() {
  std::vector<pid_t> victims;
  for (const pid_t pid : descendants_of(run_))
    if (const std::optional<int> rank = rank_of(command_line_of(pid)); rank && !blamed_.count(*rank))
      victims.push_back(pid);
  std::shuffle(victims.begin(), victims.end(), random_);
  for (size_t i = 0; i < victims.size(); i++)
    if (i == 0 || random_() % 2) kill(victims[i], SIGABRT);
}

void ScenarioTeardown::send_to_all(int signal) {
  for (const pid_t pid : descendants_of(run_)) {
    const std::vector<std::string> words = command_line_of(pid);
    // Ranks as threads live in the launcher itself; as processes they take it along when the last has ended.
    const bool has_ranks = is_player(words) && (rank_of(words) || descendants_of(pid).empty());
    if (has_ranks) kill(pid, signal);
  }
}

void ScenarioTeardown::look() {
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  switch (stage_) {
    case Stage::waiting: {
      const std::set<std::string> marks = marks_in(traces_);
      if (std::includes(old_marks_.begin(), old_marks_.end(), marks.begin(), marks.end())) return;
      abort_some();
      stage_ = Stage::aborted;
      next_ = now + 200ms;
      return;
    }
    case Stage::aborted:
      send_to_all(SIGTERM);
      stage_ = Stage::asked;
      next_ = now + 500ms;
      return;
    case Stage::asked:
      send_to_all(SIGKILL);
      stage_ = Stage::killed;
      return;
    case Stage::killed:
      return;
  }
}

}  // namespace lockstep
