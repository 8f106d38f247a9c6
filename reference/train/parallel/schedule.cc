// SPDX-License-Identifier: MIT

#include "reference/train/parallel/schedule.h"

#include <algorithm>

namespace train {
namespace {

// The order in which a stage meets (micro-batch, chunk) in interleaved schedules: `stages` micro-batches go through all
// chunks before the next `stages` begin. Backward it meets the last chunk first.
Action interleaved_step(Pass pass, int step, int stages, int chunks) {
  const int round = step / (stages * chunks);
  const int chunk = step % (stages * chunks) / stages;
  return {pass, round * stages + step % stages, pass == Pass::forward ? chunk : chunks - 1 - chunk};
}

Schedule empty(std::string name, int stages, int micro_batches, int chunks) {
  return {std::move(name), stages, chunks, micro_batches,
          std::vector<std::vector<Action>>(static_cast<size_t>(stages))};
}

}  // namespace

Schedule gpipe(int stages, int micro_batches) {
  Schedule schedule = empty("gpipe", stages, micro_batches, 1);
  for (std::vector<Action>& list : schedule.actions) {
    for (int k = 0; k < micro_batches; ++k) list.push_back({Pass::forward, k, 0});
    for (int k = 0; k < micro_batches; ++k) list.push_back({Pass::backward, k, 0});
  }
  return schedule;
}

Schedule one_forward_one_backward(int stages, int micro_batches) {
  Schedule schedule = empty("1f1b", stages, micro_batches, 1);
  for (int rank = 0; rank < stages; ++rank) {
    std::vector<Action>& list = schedule.actions[static_cast<size_t>(rank)];
    const int warm_up = std::min(stages - 1 - rank, micro_batches);
    for (int k = 0; k < warm_up; ++k) list.push_back({Pass::forward, k, 0});
    for (int k = 0; k < micro_batches; ++k) {
      if (warm_up + k < micro_batches) list.push_back({Pass::forward, warm_up + k, 0});
      list.push_back({Pass::backward, k, 0});
    }
  }
  return schedule;
}

Schedule interleaved(int stages, int micro_batches, int chunks) {
  Schedule schedule = empty("interleaved", stages, micro_batches, chunks);
  const int steps = micro_batches * chunks;
  for (int rank = 0; rank < stages; ++rank) {
    std::vector<Action>& list = schedule.actions[static_cast<size_t>(rank)];
    const int warm_up = std::min(2 * (stages - 1 - rank) + (chunks - 1) * stages, steps);
    for (int step = 0; step < warm_up; ++step) list.push_back(interleaved_step(Pass::forward, step, stages, chunks));
    for (int step = 0; step < steps; ++step) {
      if (warm_up + step < steps) list.push_back(interleaved_step(Pass::forward, warm_up + step, stages, chunks));
      list.push_back(interleaved_step(Pass::backward, step, stages, chunks));
    }
  }
  return schedule;
}

Schedule zero_bubble(int stages, int micro_batches, int warm_up) {
  Schedule schedule = empty(warm_up == 1 ? "zero-bubble" : "zero-bubble-2", stages, micro_batches, 1);
  for (int rank = 0; rank < stages; ++rank) {
    std::vector<Action>& list = schedule.actions[static_cast<size_t>(rank)];
    const int ahead = std::min(warm_up * (stages - 1 - rank), micro_batches);
    const int lag = warm_up * rank;  // by so many micro-batches W follows B
    for (int k = 0; k < ahead; ++k) list.push_back({Pass::forward, k, 0});
    for (int k = 0; k < micro_batches; ++k) {
      if (ahead + k < micro_batches) list.push_back({Pass::forward, ahead + k, 0});
      list.push_back({Pass::input, k, 0});
      if (k >= lag) list.push_back({Pass::weight, k - lag, 0});
    }
    for (int k = std::max(micro_batches - lag, 0); k < micro_batches; ++k) list.push_back({Pass::weight, k, 0});
  }
  return schedule;
}

int micro_batches_to_fill(std::string_view name, int stages) {
  return name == "zero-bubble" ? stages : name == "zero-bubble-2" ? 2 * stages - 1 : 1;
}

Schedule make_schedule(std::string_view name, int stages, int micro_batches, int chunks) {
  if (name == "gpipe") return gpipe(stages, micro_batches);
  if (name == "interleaved") return interleaved(stages, micro_batches, chunks);
  if (name == "zero-bubble") return zero_bubble(stages, micro_batches, 1);
  if (name == "zero-bubble-2") return zero_bubble(stages, micro_batches, 2);
  return one_forward_one_backward(stages, micro_batches);
}

std::string schedule_error(std::string_view name, int stages, int micro_batches, int chunks) {
  static constexpr std::string_view kNames[] = {"gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-2"};
  if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames))
    return "--schedule " + std::string(name) +
           ": no such schedule; there are gpipe, 1f1b, interleaved, zero-bubble and zero-bubble-2";
  if (name != "interleaved" && chunks != 1)
    return "--virtual-stages " + std::to_string(chunks) + " needs --schedule interleaved: " + std::string(name) +
           " gives each stage one piece of the model";
  if (name == "interleaved" && micro_batches % stages != 0)
    return "--schedule interleaved: micro-batches % pp = " + std::to_string(micro_batches) + " % " +
           std::to_string(stages) + " = " + std::to_string(micro_batches % stages) + ", must be 0";
  return {};
}

}  // namespace train
