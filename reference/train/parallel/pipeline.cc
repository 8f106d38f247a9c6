// SPDX-License-Identifier: MIT

#include "reference/train/parallel/pipeline.h"

#include <time.h>

namespace train {

Pipeline::Pipeline(const Schedule& schedule, const Comm& pp, const Stream& compute, Memory& memory, Dtype dtype,
                   int64_t elements, FakeCompute fake)
    : plan_(plan_stage(schedule, pp.rank())),
      compute_(compute),
      fake_(fake),
      arrived_(static_cast<size_t>(plan_.inbox)),
      released_(static_cast<size_t>(plan_.inbox)),
      sent_(static_cast<size_t>(plan_.outbox)),
      made_(static_cast<size_t>(plan_.outbox)) {
  for (int i = 0; i < plan_.inbox; ++i) inbox_.push_back(memory.allocate(Purpose::activations, dtype, elements));
  for (int i = 0; i < plan_.outbox; ++i) outbox_.push_back(memory.allocate(Purpose::activations, dtype, elements));
  open_channels(channels_, pp, schedule.chunks > 1, memory.allocate(Purpose::workspace, dtype, 1));
}

void Pipeline::run(const Passes& passes) {
  for (const PipelineStep& step : plan_.steps) {
    for (const Post& post : step.receives) receive(post);
    compute(step, passes);
  }
  for (const std::vector<Event>* done : {&arrived_, &sent_})
    for (const Event& event : *done) compute_.wait(event);
}

void Pipeline::receive(const Post& post) {
  const Channel& channel = post.forward ? channels_.activations_in : channels_.gradients_in;
  const auto buffer = static_cast<size_t>(post.buffer);
  channel.stream.wait(released_[buffer]);
  channel.comm.receive(inbox_[buffer], 0, channel.stream);
  channel.stream.record(arrived_[buffer]);
}

void Pipeline::send(const Post& post, View result) {
  const Channel& channel = post.forward ? channels_.activations_out : channels_.gradients_out;
  const auto buffer = static_cast<size_t>(post.buffer);
  compute_.wait(sent_[buffer]);  // what was in it before
  check(cudaMemcpyAsync(outbox_[buffer].data, result.data, result.bytes(), cudaMemcpyDeviceToDevice, compute_.get()),
        "cudaMemcpyAsync");
  compute_.record(made_[buffer]);
  channel.stream.wait(made_[buffer]);
  channel.comm.send(outbox_[buffer], 1, channel.stream);
  channel.stream.record(sent_[buffer]);
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
  for (const Post& post : step.sends) send(post, result);
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
