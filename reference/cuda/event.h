// SPDX-License-Identifier: MIT
//
// An event is the point of its last record; one never recorded is over, as in CUDA.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "cuda_runtime_api.h"
#include "reference/cuda/stream.h"

namespace lockstep::host {

class Event {
 public:
  explicit Event(bool with_timing) : timing(with_timing) {}
  const bool timing;

  Point record(const std::shared_ptr<Stream>& stream, std::vector<Point> after = {});
  Point point() const;
  bool recorded() const;
  int64_t time_ns() const;  // when the last record was reached; it must have been

  // Recorded in a stream that is captured: no point of time, but a place in a graph. nullptr: the last record was none
  // such.
  void record_captured(std::shared_ptr<const Seat> seat);
  std::shared_ptr<const Seat> captured() const;

 private:
  mutable std::mutex mutex_;
  Point point_;
  std::shared_ptr<const Seat> captured_;
  std::shared_ptr<std::atomic<int64_t>> time_;  // of the last record: one still in flight may belong to an earlier one
};

cudaEvent_t create_event(bool timing);
bool destroy_event(cudaEvent_t handle);
std::shared_ptr<Event> find_event(cudaEvent_t handle);  // nullptr: no such event

}  // namespace lockstep::host
