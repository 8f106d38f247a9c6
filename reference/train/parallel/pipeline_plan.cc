// SPDX-License-Identifier: MIT

#include "reference/train/parallel/pipeline_plan.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <tuple>

namespace train {
namespace {

// Results of each direction that may be on their way at once.
constexpr int kOutbox = 2;

// Numbers that are handed out, taken back, and handed out again: the one that has been free for longest first, since
// whoever had it last is the likeliest to be done.
class Pool {
 public:
  Pool(int first, int size) {
    for (int i = 0; i < size; ++i) free_.push_back(first + i);
  }
  bool empty() const { return free_.empty(); }
  int take() {
    const int number = free_.front();
    free_.pop_front();
    return number;
  }
  void give_back(int number) { free_.push_back(number); }

 private:
  std::deque<int> free_;
};

bool ends(const Action& action) { return action.pass == Pass::weight || action.pass == Pass::backward; }

class Planner {
 public:
  Planner(const Schedule& schedule, int stage)
      : stages_(schedule.stages),
        stage_(stage),
        last_(schedule.stages * schedule.chunks - 1),
        list_(schedule.actions[static_cast<size_t>(stage)]) {}

  PipelinePlan plan() {
    size_inbox();
    Pool slots(0, plan_.slots);
    for (const Action& action : list_) {
      PipelineStep step;
      step.action = action;
      const Key input(true, action.micro_batch, action.chunk), grad(false, action.micro_batch, action.chunk);
      const bool forward = action.pass == Pass::forward;
      post_receives(step);
      if (forward) slot_[input] = slots.take();
      step.slot = slot_.at(input);
      if (forward && receives(input)) step.input = arrived_.at(input);
      if (!forward && receives(grad)) step.output_grad = arrived_.at(grad);
      if (action.pass != Pass::weight && piece(action) != (forward ? last_ : 0))
        step.sends.push_back({forward, action.micro_batch, action.chunk, next_outbox(forward)});
      if (ends(action)) {
        slots.give_back(step.slot);
        for (const Key& key : {input, grad}) release(key, step);
      }
      plan_.steps.push_back(step);
    }
    return plan_;
  }

 private:
  using Key = std::tuple<bool, int, int>;  // activations?, micro-batch, chunk of this stage

  int piece(const Action& action) const { return action.chunk * stages_ + stage_; }
  bool receives(const Key& key) const { return std::get<2>(key) * stages_ + stage_ != (std::get<0>(key) ? 0 : last_); }

  // Of each direction as many buffers as are in use at once, and one for what comes next.
  void size_inbox() {
    std::array<int, 2> in_use{}, most{};
    int now = 0;
    for (const Action& action : list_) {
      const bool forward = action.pass == Pass::forward;
      if (forward) plan_.slots = std::max(plan_.slots, ++now);
      if (const Key key(forward, action.micro_batch, action.chunk); action.pass != Pass::weight && receives(key)) {
        expected_[forward].push_back(key);
        most[forward] = std::max(most[forward], ++in_use[forward]);
      }
      if (!ends(action)) continue;
      --now;
      for (const bool kind : {false, true})
        if (receives({kind, action.micro_batch, action.chunk})) --in_use[kind];
    }
    for (const bool kind : {false, true}) {
      if (most[kind] == 0) continue;
      free_[kind] = Pool(plan_.inbox, most[kind] + 1);
      plan_.inbox += most[kind] + 1;
    }
  }

  void post_receives(PipelineStep& step) {
    for (const bool kind : {false, true})
      while (!expected_[kind].empty() && !free_[kind].empty()) {
        const Key key = expected_[kind].front();
        expected_[kind].pop_front();
        arrived_[key] = free_[kind].take();
        step.receives.push_back({kind, std::get<1>(key), std::get<2>(key), arrived_[key]});
      }
  }

  void release(const Key& key, PipelineStep& step) {
    if (!receives(key)) return;
    free_[std::get<0>(key)].give_back(arrived_.at(key));
    step.releases.push_back(arrived_.at(key));
  }

  int next_outbox(bool forward) {
    if (sent_[forward] == 0) {
      first_[forward] = plan_.outbox;
      plan_.outbox += kOutbox;
    }
    return first_[forward] + sent_[forward]++ % kOutbox;
  }

  const int stages_, stage_, last_;
  const std::vector<Action>& list_;
  PipelinePlan plan_;
  std::array<std::deque<Key>, 2> expected_;  // by direction, in the order of the passes that need them
  std::array<Pool, 2> free_{Pool(0, 0), Pool(0, 0)};
  std::array<int, 2> sent_{}, first_{};  // of the outbox: messages so far, first buffer
  std::map<Key, int> slot_, arrived_;
};

}  // namespace

PipelinePlan plan_stage(const Schedule& schedule, int stage) { return Planner(schedule, stage).plan(); }

}  // namespace train
