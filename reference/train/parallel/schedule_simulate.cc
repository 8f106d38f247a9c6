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

}  // namespace train
