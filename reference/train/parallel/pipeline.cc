// SPDX-License-Identifier: MIT

#include "reference/train/parallel/pipeline.h"

#include <time.h>

namespace train {

Pipeline::Pipeline(const Schedule& schedule, const Comm& pp, const Stream& compute, Memory& memory, Dtype dtype,
                   int64_t elements, FakeCompute fake)
    : plan_(plan_stage(schedule, pp.rank())),
      pp_(pp),
      compute_(compute),
      fake_(fake),
      arrived_(static_cast<size_t>(plan_.inbox)),
      released_(static_cast<size_t>(plan_.inbox)),
      sent_(static_cast<size_t>(plan_.outbox)),
      made_(static_cast<size_t>(plan_.outbox)) {
  for (int i = 0; i < plan_.inbox; ++i) inbox_.push_back(memory.allocate(Purpose::activations, dtype, elements));
  for (int i = 0; i < plan_.outbox; ++i) outbox_.push_back(memory.allocate(Purpose::activations, dtype, elements));
}

void Pipeline::run(const Passes& passes) {
  for (const PipelineStep& step : plan_.steps)
    if (step.posts.empty())
      compute(step, passes);
    else
      exchange(step.posts);
  for (const std::vector<Event>* done : {&arrived_, &sent_})
    for (const Event& event : *done) compute_.wait(event);
}

// Both directions in one group: neither side waits for the other's turn.
void Pipeline::exchange(const std::vector<Post>& posts) {
  for (const Post& post : posts) messages_.wait((post.send ? made_ : released_)[static_cast<size_t>(post.buffer)]);
  {
    const Group group;
    for (const Post& post : posts)
      if (post.send)
        pp_.send(outbox_[static_cast<size_t>(post.buffer)], post.peer, messages_);
      else
        pp_.receive(inbox_[static_cast<size_t>(post.buffer)], post.peer, messages_);
  }
  for (const Post& post : posts) messages_.record((post.send ? sent_ : arrived_)[static_cast<size_t>(post.buffer)]);
}

void Pipeline::compute(const PipelineStep& step, const Passes& passes) {
  const auto [pass, k, chunk] = step.action;
  const auto take = [&](int buffer) {
    if (buffer < 0) return View{};
    compute_.wait(arrived_[static_cast<size_t>(buffer)]);
    return inbox_[static_cast<size_t>(buffer)];
  };
  View result;
  switch (pass) {
    case Pass::forward:
      result = passes.forward(step.slot, k, chunk, take(step.input));
      sleep(fake_.forward);
      break;
    case Pass::input:
      result = passes.backward_input(step.slot, k, chunk, take(step.output_grad));
      sleep(fake_.input);
      break;
    case Pass::backward:
      result = passes.backward(step.slot, k, chunk, take(step.output_grad));
      sleep(fake_.input + fake_.weight);
      break;
    case Pass::weight:
      passes.backward_weight(step.slot, k, chunk);
      sleep(fake_.weight);
      break;
  }
  if (step.output >= 0) {
    const auto buffer = static_cast<size_t>(step.output);
    compute_.wait(sent_[buffer]);  // what was in it before
    check(cudaMemcpyAsync(outbox_[buffer].data, result.data, result.bytes(), cudaMemcpyDeviceToDevice, compute_.get()),
          "cudaMemcpyAsync");
    compute_.record(made_[buffer]);
  }
  for (const int buffer : step.releases) compute_.record(released_[static_cast<size_t>(buffer)]);
}

void Pipeline::sleep(double microseconds) {
  if (microseconds <= 0) return;
  const auto body = [](void* how_long) {
    const auto nanoseconds = static_cast<int64_t>(reinterpret_cast<intptr_t>(how_long));
    timespec left{nanoseconds / 1000000000, nanoseconds % 1000000000};
    while (nanosleep(&left, &left) != 0) {
    }
  };
  check(cudaLaunchHostFunc(compute_.get(), body, reinterpret_cast<void*>(static_cast<intptr_t>(microseconds * 1000))),
        "cudaLaunchHostFunc");
}

}  // namespace train
