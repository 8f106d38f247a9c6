// SPDX-License-Identifier: MIT
//
// Plans against the schedules they come from. A plan is executed as the runtime does it, with channels that keep their
// order, bounded memory and messages that take no time: it must come to its end, and take exactly as long as the
// schedule by itself, whatever the lengths of the passes.

#include "reference/train/parallel/pipeline_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "reference/train/parallel/schedule_simulate.h"

namespace train {
namespace {

void for_every_layout(const std::function<void(const Schedule&)>& body) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-2"})
    for (int p = 2; p <= 5; ++p)
      for (int m = 1; m <= 12; ++m)
        for (int v = 1; v <= 3; ++v) {
          if (!schedule_error(name, p, m, v).empty()) continue;
          SCOPED_TRACE(std::string(name) + " p=" + std::to_string(p) + " m=" + std::to_string(m) +
                       " v=" + std::to_string(v));
          body(make_schedule(name, p, m, v));
        }
}

// One step of all stages on the clock. Whatever can happen happens; what is not known yet has no time.
class Execution {
 public:
  Execution(const Schedule& schedule, const Costs& costs) : schedule_(schedule), costs_(costs) {
    for (int stage = 0; stage < schedule.stages; ++stage) {
      plans_.push_back(plan_stage(schedule, stage));
      const PipelinePlan& plan = plans_.back();
      stages_.push_back({std::vector<int64_t>(static_cast<size_t>(plan.inbox)),
                         std::vector<int64_t>(static_cast<size_t>(plan.outbox)),
                         {},
                         0,
                         0});
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < schedule.stages; ++stage)
        while (pass(stage)) moved = true;
      for (auto& [edge, channel] : channels_)
        while (transfer(edge, channel)) moved = true;
    }
  }

  bool done() const {
    for (size_t stage = 0; stage < plans_.size(); ++stage)
      if (stages_[stage].next < plans_[stage].steps.size()) return false;
    return true;
  }
  int64_t makespan() const {
    int64_t latest = 0;
    for (const Stage& stage : stages_) latest = std::max(latest, stage.time);
    return latest;
  }

 private:
  struct Stage {
    std::vector<int64_t> released, sent;  // of buffers; -1: a message is in it or expected
    std::map<int, int64_t> arrived;       // buffer -> time
    size_t next;
    int64_t time;
  };
  struct End {
    Post post;
    int64_t ready;  // the result is there, or the memory for it
  };
  struct Channel {
    std::vector<End> sends, receives;
    size_t done = 0;
    int64_t time = 0;
  };
  using Edge = std::pair<int, bool>;  // receiver, activations?

  int64_t cost(Pass pass) const {
    return pass == Pass::forward  ? costs_.forward
           : pass == Pass::input  ? costs_.input
           : pass == Pass::weight ? costs_.weight
                                  : costs_.input + costs_.weight;
  }

  bool pass(int number) {
    Stage& stage = stages_[static_cast<size_t>(number)];
    PipelinePlan& plan = plans_[static_cast<size_t>(number)];
    if (stage.next == plan.steps.size()) return false;
    PipelineStep& step = plan.steps[stage.next];
    for (const Post& post : step.receives) {
      channels_[{number, post.forward}].receives.push_back({post, stage.released[static_cast<size_t>(post.buffer)]});
      stage.arrived.erase(post.buffer);
    }
    step.receives.clear();  // posted, however often the pass is tried
    int64_t begin = stage.time;
    for (const int buffer : {step.input, step.output_grad}) {
      if (buffer < 0) continue;
      if (stage.arrived.count(buffer) == 0) return false;
      begin = std::max(begin, stage.arrived[buffer]);
    }
    int64_t end = begin + cost(step.action.pass);
    for (const Post& post : step.sends) {
      int64_t& sent = stage.sent[static_cast<size_t>(post.buffer)];
      if (sent < 0) return false;
      end = std::max(end, sent);
      sent = -1;
      const int peer = (number + (post.forward ? 1 : schedule_.stages - 1)) % schedule_.stages;
      channels_[{peer, post.forward}].sends.push_back({post, end});
    }
    for (const int buffer : step.releases) stage.released[static_cast<size_t>(buffer)] = end;
    stage.time = end;
    ++stage.next;
    return true;
  }
  bool transfer(const Edge& edge, Channel& channel) {
    if (channel.done == std::min(channel.sends.size(), channel.receives.size())) return false;
    const End &send = channel.sends[channel.done], &receive = channel.receives[channel.done];
    channel.time = std::max({channel.time, send.ready, receive.ready});
    EXPECT_EQ(send.post.micro_batch, receive.post.micro_batch);
    const int sender = (edge.first + (edge.second ? schedule_.stages - 1 : 1)) % schedule_.stages;
    stages_[static_cast<size_t>(sender)].sent[static_cast<size_t>(send.post.buffer)] = channel.time;
    stages_[static_cast<size_t>(edge.first)].arrived[receive.post.buffer] = channel.time;
    ++channel.done;
    return true;
  }

  const Schedule& schedule_;
  const Costs costs_;
  std::vector<PipelinePlan> plans_;
  std::vector<Stage> stages_;
  std::map<Edge, Channel> channels_;
};

TEST(PipelinePlan, TakesAsLongAsTheScheduleWhateverThePassesTake) {
  for_every_layout([](const Schedule& schedule) {
    for (const Costs& costs : {Costs{1, 1, 1}, Costs{10, 12, 8}, Costs{7, 9, 4}, Costs{3, 1, 9}, Costs{20, 1, 1}}) {
      const Execution execution(schedule, costs);
      ASSERT_TRUE(execution.done());
      EXPECT_EQ(execution.makespan(), simulate(schedule, costs).makespan) << costs.forward << ' ' << costs.input;
    }
  });
}

TEST(PipelinePlan, BothEndsOfEveryChannelAgreeInEveryLayout) {
  for_every_layout([](const Schedule& schedule) {
    const int p = schedule.stages;
    std::map<std::pair<int, bool>, std::vector<int>> sent, received;  // by receiver and direction: pieces, in order
    const auto number = [&](int micro_batch, int piece) { return micro_batch * 1000 + piece; };
    size_t messages = 0;
    for (int stage = 0; stage < p; ++stage)
      for (const PipelineStep& step : plan_stage(schedule, stage).steps) {
        for (const Post& post : step.sends) {
          const int to = post.chunk * p + stage + (post.forward ? 1 : -1);
          sent[{to % p, post.forward}].push_back(number(post.micro_batch, to));
          ++messages;
        }
        for (const Post& post : step.receives)
          received[{stage, post.forward}].push_back(number(post.micro_batch, post.chunk * p + stage));
      }
    EXPECT_EQ(sent, received);
    EXPECT_EQ(messages, static_cast<size_t>(2 * schedule.micro_batches * (p * schedule.chunks - 1)));
  });
}

TEST(PipelinePlan, HoldsNoMoreMemoryThanTheScheduleHasMicroBatchesInFlight) {
  for_every_layout([](const Schedule& schedule) {
    const Timing timing = simulate(schedule, {});
    for (int stage = 0; stage < schedule.stages; ++stage) {
      const PipelinePlan plan = plan_stage(schedule, stage);
      EXPECT_EQ(plan.slots, timing.in_flight[static_cast<size_t>(stage)]) << stage;
      EXPECT_LE(plan.outbox, 4) << stage;
      EXPECT_LE(plan.inbox, 2 * plan.slots + 2) << stage;
    }
  });
}

}  // namespace
}  // namespace train
