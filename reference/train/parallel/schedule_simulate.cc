// SPDX-License-Identifier: MIT

#include "reference/train/parallel/schedule_simulate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace train {
namespace {

int64_t cost(Pass pass, const Costs& costs) {
  switch (pass) {
    case Pass::forward:
      return costs.forward;
    case Pass::input:
      return costs.input;
    case Pass::weight:
      return costs.weight;
    case Pass::backward:
      break;
  }
  return costs.input + costs.weight;
}

// When the results of piece p of the model are there: (piece, micro-batch) -> time.
struct Results {
  std::map<std::pair<int, int>, int64_t> forward, input;
};

std::optional<int64_t> find(const std::map<std::pair<int, int>, int64_t>& times, int piece, int micro_batch) {
  const auto place = times.find({piece, micro_batch});
  return place == times.end() ? std::nullopt : std::optional(place->second);
}

// When what the pass works on is there; nothing: not known yet.
std::optional<int64_t> ready(const Action& action, int stage, const Schedule& schedule, const Results& results) {
  const int piece = action.chunk * schedule.stages + stage, last = schedule.stages * schedule.chunks - 1;
  switch (action.pass) {
    case Pass::forward:
      return piece == 0 ? 0 : find(results.forward, piece - 1, action.micro_batch);
    case Pass::weight:
      return find(results.input, piece, action.micro_batch);
    case Pass::input:
    case Pass::backward:
      break;
  }
  const auto own = find(results.forward, piece, action.micro_batch);
  if (piece == last || !own) return own;
  return find(results.input, piece + 1, action.micro_batch);
}

int most_in_flight(const std::vector<Action>& list) {
  int now = 0, most = 0;
  for (const Action& action : list) {
    if (action.pass == Pass::forward) most = std::max(most, ++now);
    if (action.pass == Pass::weight || action.pass == Pass::backward) --now;
  }
  return most;
}

char letter(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return 'F';
    case Pass::input:
      return 'B';
    case Pass::weight:
      return 'W';
    case Pass::backward:
      break;
  }
  return 'D';
}

std::string label(const Action& action) {
  return letter(action.pass) + std::to_string(action.micro_batch) +
         std::string(static_cast<size_t>(action.chunk), '\'');
}

}  // namespace

Timing simulate(const Schedule& schedule, const Costs& costs, std::string* stuck) {
  const size_t stages = schedule.actions.size();
  Timing timing;
  timing.spans.resize(stages);
  Results results;
  // Round after round each stage goes on as far as it can.
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < stages; ++stage) {
      const std::vector<Action>& list = schedule.actions[stage];
      std::vector<Span>& spans = timing.spans[stage];
      while (spans.size() < list.size()) {
        const Action& action = list[spans.size()];
        const auto start = ready(action, static_cast<int>(stage), schedule, results);
        if (!start) break;
        const int64_t begin = std::max(*start, spans.empty() ? 0 : spans.back().end);
        spans.push_back({begin, begin + cost(action.pass, costs)});
        const std::pair key(action.chunk * schedule.stages + static_cast<int>(stage), action.micro_batch);
        if (action.pass == Pass::forward) results.forward[key] = spans.back().end;
        if (action.pass == Pass::input || action.pass == Pass::backward) results.input[key] = spans.back().end;
        moved = true;
      }
    }
  }
  for (size_t stage = 0; stage < stages; ++stage)
    if (const size_t done = timing.spans[stage].size(); done < schedule.actions[stage].size()) {
      if (stuck != nullptr)
        *stuck = "stage " + std::to_string(stage) + " never comes to " + label(schedule.actions[stage][done]);
      return {};
    }
  for (const std::vector<Span>& spans : timing.spans)
    if (!spans.empty()) timing.makespan = std::max(timing.makespan, spans.back().end);
  for (size_t stage = 0; stage < stages; ++stage) {
    int64_t busy = 0;
    for (const Span& span : timing.spans[stage]) busy += span.end - span.begin;
    timing.idle.push_back(timing.makespan - busy);
    const std::vector<Span>& spans = timing.spans[stage];
    timing.window.push_back(spans.empty() ? 0 : spans.back().end - spans.front().begin - busy);
    timing.in_flight.push_back(most_in_flight(schedule.actions[stage]));
  }
  return timing;
}

std::string draw(const Schedule& schedule, const Costs& costs) {
  std::string stuck;
  const Timing timing = simulate(schedule, costs, &stuck);
  if (!stuck.empty()) return stuck + "\n";
  const size_t width = 2 + std::to_string(schedule.micro_batches - 1).size() + static_cast<size_t>(schedule.chunks - 1);
  std::string text = schedule.name + ": " + std::to_string(schedule.stages) + " stages, " +
                     std::to_string(schedule.micro_batches) + " micro-batches, " + std::to_string(schedule.chunks) +
                     (schedule.chunks == 1 ? " chunk a stage\n" : " chunks a stage\n");
  for (size_t stage = 0; stage < timing.spans.size(); ++stage) {
    std::string line(width * static_cast<size_t>(timing.makespan), ' ');
    for (size_t i = 0; i < static_cast<size_t>(timing.makespan); ++i) line[i * width] = '.';
    for (size_t i = 0; i < timing.spans[stage].size(); ++i) {
      const Span span = timing.spans[stage][i];
      const size_t room = width * static_cast<size_t>(span.end - span.begin);
      std::string cell = label(schedule.actions[stage][i]);
      cell.resize(room - 1, room > width ? '-' : ' ');  // a pass of several units is drawn as long as it takes
      line.replace(width * static_cast<size_t>(span.begin), room, cell + ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += "stage " + std::to_string(stage) + "  " + line + "\n";
  }
  const int64_t work = timing.makespan - timing.idle.front();
  text += "makespan " + std::to_string(timing.makespan) + ", of it work " + std::to_string(work) + ", bubble " +
          std::to_string(timing.idle.front()) + " a stage; inside a stage's own window";
  for (const int64_t idle : timing.window) text += " " + std::to_string(idle);
  text += "; most in flight";
  for (const int count : timing.in_flight) text += " " + std::to_string(count);
  return text + "\n";
}

}  // namespace train
