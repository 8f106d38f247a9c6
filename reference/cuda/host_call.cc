// SPDX-License-Identifier: MIT
//
// See host_call.h. The thread is detached and holds its queue by reference count, so a stream may be destroyed by any
// thread, this one included.

#include "reference/cuda/host_call.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "interpose/include/lockstep.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/signals.h"

namespace lockstep::host {

struct HostQueue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> functions;
  bool stopped = false;
};

namespace {

void run(const std::shared_ptr<HostQueue>& queue) {
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return queue->stopped || !queue->functions.empty(); });
    if (queue->functions.empty()) return;
    const auto function = std::move(queue->functions.front());
    queue->functions.pop_front();
    lock.unlock();
    function();
    lock.lock();
  }
}

class HostCall final : public Op {
 public:
  HostCall(Stream& stream, std::function<void()> function) : stream_(stream), function_(std::move(function)) {}

  Step step() override {
    if (!started_) {
      started_ = true;
      post();
    }
    return over_->load(std::memory_order_acquire) ? Step::done : Step::waiting;
  }
  Activity activity() const override { return {LOCKSTEP_ACTIVITY_HOST_FUNCTION, "host function"}; }

 private:
  // The flag outlives this operation: once it is set, another thread may take the operation off its stream.
  void post() {
    HostQueue& queue = stream_.host_queue();
    const std::lock_guard lock(queue.mutex);
    queue.functions.emplace_back([function = std::move(function_), over = over_] {
      function();
      over->store(true, std::memory_order_seq_cst);
      engine().local_bell().ring();
      engine().poke();
    });
    queue.changed.notify_one();
  }

  Stream& stream_;
  std::function<void()> function_;
  bool started_ = false;
  std::shared_ptr<std::atomic<bool>> over_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

std::shared_ptr<HostQueue> start_host_queue() {
  auto queue = std::make_shared<HostQueue>();
  const SignalsBlocked blocked;
  std::thread([queue] { run(queue); }).detach();
  return queue;
}

void stop_host_queue(HostQueue& queue) {
  const std::lock_guard lock(queue.mutex);
  queue.stopped = true;
  queue.changed.notify_one();
}

std::unique_ptr<Op> make_host_call(Stream& stream, std::function<void()> function) {
  return std::make_unique<HostCall>(stream, std::move(function));
}

}  // namespace lockstep::host
