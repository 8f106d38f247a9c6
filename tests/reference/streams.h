// SPDX-License-Identifier: MIT
//
// What tests of streams use: a child to run in, something to hold a stream up with, and handles without ceremony.

#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "tests/reference/ranks.h"

namespace lockstep::test {

inline void in_child(const std::function<void()>& body, milliseconds limit = milliseconds(20000)) {
  std::vector<Child> child;
  child.emplace_back(body);
  expect_all_end_well(child, limit);
}

// Holds a stream up until opened.
class Latch {
 public:
  static void wait(void* self) { static_cast<Latch*>(self)->wait(); }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

inline cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}
inline cudaEvent_t new_event(unsigned flags = cudaEventDefault) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaSuccess, cudaEventCreateWithFlags(&event, flags));
  return event;
}
inline void brief_pause() { std::this_thread::sleep_for(milliseconds(30)); }

// Gives up after long enough for any machine; what follows then says what is missing.
inline void wait_until(const std::function<bool()>& so) {
  const auto deadline = Clock::now() + milliseconds(10000);
  while (!so() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
}

}  // namespace lockstep::test
