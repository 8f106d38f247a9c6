// SPDX-License-Identifier: MIT
//
// What a stream is a queue of.
//
// An operation is a resumable machine: step() does a bounded piece of work and says whether it may be called again at
// once, must wait for somebody, or is over. It never blocks. That is why any thread may drive any stream, why a stream
// whose peer never comes holds up nothing but itself, and why thousands of operations can be queued ahead: no thread
// and no pool is tied up by an operation in flight. Only one thread at a time steps the operations of a stream.

#pragma once

#include <memory>

#include "reference/cuda/wait.h"

namespace lockstep::host {

enum class Step { waiting, progressed, done };

// The bell that rings when a waiting operation may go on. `owner` keeps the memory the bell lies in mapped while
// somebody sleeps on it. Empty: the operation waits for something in this process, and the process-wide bell will ring.
struct WaitPoint {
  std::shared_ptr<const void> owner;
  Bell* bell = nullptr;
};

// What to call an operation when somebody listens (see activity.h): a kind of interpose/include/lockstep.h and a name
// that lives as long as the operation. Kind 0: not worth telling.
struct Activity {
  int kind = 0;
  const char* name = nullptr;
};

class Op {
 public:
  virtual ~Op() = default;
  virtual Step step() = 0;
  virtual WaitPoint wait_point() { return {}; }
  virtual Activity activity() const { return {}; }
};

}  // namespace lockstep::host
