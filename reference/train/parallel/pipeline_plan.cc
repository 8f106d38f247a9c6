// SPDX-License-Identifier: MIT

#include "reference/train/parallel/pipeline_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "reference/train/parallel/schedule_simulate.h"

namespace train {
namespace {

// Numbers that are handed out, taken back as of a time, and handed out again.
class Pool {
 public:
  int take(int64_t now) {
    const auto free = std::find_if(free_at_.begin(), free_at_.end(), [&](int64_t at) { return at <= now; });
    const auto number = static_cast<int>(free - free_at_.begin());
    if (free == free_at_.end()) free_at_.push_back(0);
    free_at_[static_cast<size_t>(number)] = kTaken;
    return number;
  }
  void give_back(int number, int64_t when) { free_at_[static_cast<size_t>(number)] = when; }
  int size() const { return static_cast<int>(free_at_.size()); }

 private:
  static constexpr int64_t kTaken = INT64_MAX;
  std::vector<int64_t> free_at_;
};

struct Message {
  int64_t time;
  int from, to;  // pieces of the model
  int micro_batch;
  bool forward() const { return from < to; }
};

std::vector<Message> messages_of(const Schedule& schedule, const Timing& timing) {
  const int last = schedule.stages * schedule.chunks - 1;
  std::vector<Message> messages;
  for (int stage = 0; stage < schedule.stages; ++stage)
    for (size_t i = 0; i < schedule.actions[static_cast<size_t>(stage)].size(); ++i) {
      const Action& action = schedule.actions[static_cast<size_t>(stage)][i];
      const int piece = action.chunk * schedule.stages + stage;
      const int64_t end = timing.spans[static_cast<size_t>(stage)][i].end;
      if (action.pass == Pass::forward && piece < last) messages.push_back({end, piece, piece + 1, action.micro_batch});
      if ((action.pass == Pass::input || action.pass == Pass::backward) && piece > 0)
        messages.push_back({end, piece, piece - 1, action.micro_batch});
    }
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.time, a.from, a.to, a.micro_batch) < std::tie(b.time, b.from, b.to, b.micro_batch);
  });
  return messages;
}

class Planner {
 public:
  Planner(const Schedule& schedule, int stage)
      : schedule_(schedule), stage_(stage), last_(schedule.stages * schedule.chunks - 1) {}

  PipelinePlan plan() {
    const Timing timing = simulate(schedule_, {});
    const std::vector<Message> messages = messages_of(schedule_, timing);
    auto next = messages.begin();
    const auto post_until = [&](int64_t time) {
      while (next != messages.end() && next->time <= time) {
        PipelineStep step;
        for (const int64_t now = next->time; next != messages.end() && next->time == now; ++next) post(*next, step);
        if (!step.posts.empty()) plan_.steps.push_back(step);
      }
    };
    const std::vector<Action>& list = schedule_.actions[static_cast<size_t>(stage_)];
    for (size_t i = 0; i < list.size(); ++i) {
      const Span span = timing.spans[static_cast<size_t>(stage_)][i];
      post_until(span.begin);
      pass(list[i], span);
    }
    post_until(timing.makespan);
    plan_.slots = slots_.size();
    plan_.inbox = inbox_.size();
    plan_.outbox = outbox_.size();
    return plan_;
  }

 private:
  using Key = std::tuple<bool, int, int>;  // activations?, micro-batch, chunk of this stage

  void post(const Message& message, PipelineStep& step) {
    const int from = message.from % schedule_.stages, to = message.to % schedule_.stages;
    if (from == stage_) {
      const int chunk = message.from / schedule_.stages;
      const int buffer = leaving_.at({message.forward(), message.micro_batch, chunk});
      step.posts.push_back({true, to, message.forward(), message.micro_batch, chunk, buffer});
      outbox_.give_back(buffer, message.time + 1);  // on its way for as long as a pass
    }
    if (to == stage_) {
      const int chunk = message.to / schedule_.stages, buffer = inbox_.take(message.time);
      arrived_[{message.forward(), message.micro_batch, chunk}] = buffer;
      step.posts.push_back({false, from, message.forward(), message.micro_batch, chunk, buffer});
    }
  }

  void pass(const Action& action, Span span) {
    const Key input(true, action.micro_batch, action.chunk), output_grad(false, action.micro_batch, action.chunk);
    const int piece = action.chunk * schedule_.stages + stage_;
    PipelineStep step;
    step.action = action;
    if (action.pass == Pass::forward) slot_[input] = slots_.take(span.begin);
    step.slot = slot_.at(input);
    if (action.pass == Pass::forward && piece > 0) step.input = arrived_.at(input);
    if (action.pass != Pass::forward && piece < last_) step.output_grad = arrived_.at(output_grad);
    const bool forward = action.pass == Pass::forward;
    if (action.pass != Pass::weight && piece != (forward ? last_ : 0))
      step.output = leaving_[forward ? input : output_grad] = outbox_.take(span.begin);
    if (action.pass == Pass::weight || action.pass == Pass::backward) {
      slots_.give_back(step.slot, span.end);
      for (const Key& key : {input, output_grad})
        if (const auto buffer = arrived_.find(key); buffer != arrived_.end()) {
          inbox_.give_back(buffer->second, span.end);
          step.releases.push_back(buffer->second);
        }
    }
    plan_.steps.push_back(step);
  }

  const Schedule& schedule_;
  int stage_, last_;
  PipelinePlan plan_;
  Pool slots_, inbox_, outbox_;
  std::map<Key, int> slot_, arrived_, leaving_;
};

}  // namespace

PipelinePlan plan_stage(const Schedule& schedule, int stage) { return Planner(schedule, stage).plan(); }

}  // namespace train
