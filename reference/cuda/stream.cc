// SPDX-License-Identifier: MIT
//
// See stream.h.

#include "reference/cuda/stream.h"

#include <utility>

#include "reference/cuda/activity.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/host_call.h"

namespace lockstep::host {

static uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

Stream::Stream(int on_device, StreamKind of_kind, int with_priority)
    : device(on_device), kind(of_kind), priority(with_priority), id(next_id()) {}

Stream::~Stream() {
  if (host_queue_) stop_host_queue(*host_queue_);
}

uint64_t Stream::enqueue(std::unique_ptr<Op> op, std::vector<Point> after) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(op), std::move(after), in_graph(), 0});
  return enqueued_.fetch_add(1, std::memory_order_seq_cst) + 1;
}

// References into a deque survive push_back, and nobody but the driver pops: whoever spins on an operation that waits
// need not take the lock each time.
Stream::Node* Stream::head() {
  if (head_ != nullptr) return head_;
  const std::lock_guard lock(mutex_);
  if (!queue_.empty()) head_ = &queue_.front();
  return head_;
}

void Stream::pop() {
  Node over;
  {
    const std::lock_guard lock(mutex_);
    over = std::move(queue_.front());
    queue_.pop_front();
    head_ = queue_.empty() ? nullptr : &queue_.front();
  }
  over.op.reset();  // gives its memory back before anybody may think the operation over
  completed_.fetch_add(1, std::memory_order_seq_cst);
  engine().local_bell().ring();
}

Step Stream::step_head(Node& head) {
  while (!head.after.empty()) {
    if (!head.after.back().reached()) return Step::waiting;
    head.after.pop_back();
  }
  const ActivitySink sink = activity_sink();
  if (sink == nullptr) return head.op->step();
  if (head.begun == 0) head.begun = now_ns();
  const Step step = head.op->step();
  if (step == Step::done) tell_activity(sink, *head.op, *this, head.begun, head.in_graph);
  return step;
}

void Stream::tell(const Node& waiting, Blocked& blocked) const {
  if (!waiting.after.empty())
    blocked.on = waiting.after.back();
  else if (blocked.bell_wanted)
    blocked.wait_point = waiting.op->wait_point();
}

Drive Stream::drive(uint64_t target, int budget, Blocked* blocked) {
  if (!pending()) return Drive::idle;
  if (driving_.exchange(true, std::memory_order_acquire)) return Drive::busy;
  Drive result = Drive::idle;
  while (completed() < target && budget-- > 0) {
    Node* next = head();
    if (next == nullptr) break;
    const Step step = step_head(*next);
    if (step == Step::waiting) {
      if (result == Drive::idle) result = Drive::waiting;
      if (blocked != nullptr) tell(*next, *blocked);
      break;
    }
    result = Drive::progressed;
    if (step == Step::done) pop();
  }
  driving_.store(false, std::memory_order_release);
  return result;
}

HostQueue& Stream::host_queue() {
  if (!host_queue_) host_queue_ = start_host_queue();
  return *host_queue_;
}

}  // namespace lockstep::host
