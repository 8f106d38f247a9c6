// SPDX-License-Identifier: MIT
//
// See event.h.

#include "reference/cuda/event.h"

#include <unordered_map>
#include <utility>

#include "reference/cuda/activity.h"
#include "reference/cuda/engine.h"

namespace lockstep::host {
namespace {

class TimeMark final : public Op {
 public:
  explicit TimeMark(std::shared_ptr<std::atomic<int64_t>> time) : time_(std::move(time)) {}
  Step step() override {
    time_->store(now_ns(), std::memory_order_release);
    return Step::done;
  }

 private:
  const std::shared_ptr<std::atomic<int64_t>> time_;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<cudaEvent_t, std::shared_ptr<Event>> events;
};
Registry& registry() {
  static Registry* const the_one = new Registry;  // never destroyed; see engine.h
  return *the_one;
}

}  // namespace

Point Event::record(const std::shared_ptr<Stream>& stream, std::vector<Point> after) {
  auto time = std::make_shared<std::atomic<int64_t>>(0);
  const std::lock_guard lock(mutex_);
  point_ = engine().submit(stream, std::make_unique<TimeMark>(time), std::move(after));
  time_ = std::move(time);
  captured_.reset();
  return point_;
}
void Event::record_captured(std::shared_ptr<const Seat> seat) {
  const std::lock_guard lock(mutex_);
  captured_ = std::move(seat);
}
std::shared_ptr<const Seat> Event::captured() const {
  const std::lock_guard lock(mutex_);
  return captured_;
}
Point Event::point() const {
  const std::lock_guard lock(mutex_);
  return point_;
}
bool Event::recorded() const {
  const std::lock_guard lock(mutex_);
  return time_ != nullptr;
}
int64_t Event::time_ns() const {
  const std::lock_guard lock(mutex_);
  return time_->load(std::memory_order_acquire);
}

cudaEvent_t create_event(bool timing) {
  auto event = std::make_shared<Event>(timing);
  const auto handle = reinterpret_cast<cudaEvent_t>(event.get());
  const std::lock_guard lock(registry().mutex);
  registry().events.emplace(handle, std::move(event));
  return handle;
}
bool destroy_event(cudaEvent_t handle) {
  const std::lock_guard lock(registry().mutex);
  return registry().events.erase(handle) != 0;
}
std::shared_ptr<Event> find_event(cudaEvent_t handle) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().events.find(handle);
  return found == registry().events.end() ? nullptr : found->second;
}

}  // namespace lockstep::host
