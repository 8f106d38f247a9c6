// SPDX-License-Identifier: MIT
//
// Communication beside computation, for modes that exchange in the middle of a layer: a stream of their own, two
// events, and memory for what is on its way. One per rank; its users take turns on the compute stream. Without overlap
// everything is on the compute stream, where it stands in the way of what comes later.

#pragma once

#include "reference/train/core/device.h"

namespace train {

class Exchange {
 public:
  explicit Exchange(Memory& memory, bool overlap = true) : overlap_(overlap), workspace_(memory, Purpose::workspace) {}

  // Enqueues body(stream), which comes after everything that is on `compute` now, beside what is put there later.
  template <class Body>
  void begin(const Stream& compute, const Body& body) {
    if (!overlap_) return body(compute);
    compute.record(ready_);
    stream_.wait(ready_);
    body(stream_);
    stream_.record(done_);
  }
  // What is put on `compute` later comes after everything begun so far.
  void join(const Stream& compute) {
    if (overlap_) compute.wait(done_);
  }

  // Empty at the begin of each use: whoever used it before has joined, and later users come after it on the compute
  // stream.
  Arena& workspace() { return workspace_; }
  Arena& empty_workspace() {
    workspace_.reset();
    return workspace_;
  }

 private:
  const bool overlap_;
  Stream stream_;
  Event ready_, done_;
  Arena workspace_;
};

}  // namespace train
