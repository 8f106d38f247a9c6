// SPDX-License-Identifier: MIT
//
// The picture of --print-schedule: lines of text that are as long as the passes take.

#include <algorithm>
#include <cstdio>

#include "reference/train/parallel/schedule_simulate.h"

namespace train {
namespace {

constexpr int64_t kMostColumns = 1 << 14;

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

std::string counted(int count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

// Times in units of cost, or in microseconds.
struct Numbers {
  double microseconds;  // a unit; 0: units are told
  std::string text(int64_t time) const {
    if (microseconds == 0) return std::to_string(time);
    char number[32];
    std::snprintf(number, sizeof number, "%.10g", static_cast<double>(time) * microseconds);
    return number;
  }
};

// As long as the shortest pass, so that each has room for its name; longer where a line would never end.
int64_t column_of(const Timing& timing) {
  int64_t shortest = std::max<int64_t>(timing.makespan, 1);
  for (const std::vector<Span>& spans : timing.spans)
    for (const Span& span : spans)
      if (span.end > span.begin) shortest = std::min(shortest, span.end - span.begin);
  return std::max(shortest, (timing.makespan + kMostColumns - 1) / kMostColumns);
}

// What takes a column or more gets one or more, wherever it begins.
int64_t nearest(int64_t time, int64_t column) { return (2 * time + column) / (2 * column); }

std::string line_of(const std::vector<Action>& list, const std::vector<Span>& spans, int64_t columns, int64_t column,
                    size_t width) {
  std::string line(width * static_cast<size_t>(columns), ' ');
  for (size_t i = 0; i < static_cast<size_t>(columns); ++i) line[i * width] = '.';
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto begin = static_cast<size_t>(nearest(spans[i].begin, column));
    const size_t room = width * (static_cast<size_t>(nearest(spans[i].end, column)) - begin);
    if (room == 0) continue;
    std::string cell = label(list[i]);
    cell.resize(room - 1, room > width ? '-' : ' ');
    line.replace(width * begin, room, cell + ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string last_line(const Timing& timing, const Numbers& numbers) {
  std::string text = "makespan " + numbers.text(timing.makespan) + (numbers.microseconds == 0 ? "" : " us") +
                     ", of it work " + numbers.text(timing.makespan - timing.idle.front()) + ", bubble " +
                     numbers.text(timing.idle.front()) + " a stage; inside a stage's own window";
  for (const int64_t idle : timing.window) text += " " + numbers.text(idle);
  text += "; most in flight";
  for (const int count : timing.in_flight) text += " " + std::to_string(count);
  return text + "\n";
}

}  // namespace

std::string label(const Action& action) {
  return letter(action.pass) + std::to_string(action.micro_batch) +
         std::string(static_cast<size_t>(action.chunk), '\'');
}

std::string draw(const Schedule& schedule, const Costs& costs, double microseconds) {
  std::string stuck;
  const Timing timing = simulate(schedule, costs, &stuck);
  if (!stuck.empty()) return stuck + "\n";
  const Numbers numbers{microseconds};
  const int64_t column = column_of(timing), columns = nearest(timing.makespan, column);
  const size_t width = 2 + std::to_string(schedule.micro_batches - 1).size() + static_cast<size_t>(schedule.chunks - 1);
  std::string text = schedule.name + ": " + counted(schedule.stages, "stage", "stages") + ", " +
                     counted(schedule.micro_batches, "micro-batch", "micro-batches") + ", " +
                     counted(schedule.chunks, "chunk", "chunks") + " a stage";
  if (microseconds != 0)
    text += "; F " + numbers.text(costs.forward) + ", B " + numbers.text(costs.input) + ", W " +
            numbers.text(costs.weight) + ", a column " + numbers.text(column) + " us";
  text += "\n";
  for (size_t stage = 0; stage < timing.spans.size(); ++stage)
    text += "stage " + std::to_string(stage) + "  " +
            line_of(schedule.actions[stage], timing.spans[stage], columns, column, width) + "\n";
  return text + last_line(timing, numbers);
}

}  // namespace train
