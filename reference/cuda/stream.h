// SPDX-License-Identifier: MIT
//
// A stream: an unbounded queue of operations, stepped in order by whoever has time.
//
//   - the progress thread drives every stream that nobody waits for,
//   - whoever waits for a stream, an event or a device drains it himself, which saves the hand-over to another thread,
//   - user host functions run on a thread of the stream's own, started at the first one, so that code of the user's
//   that
//     blocks holds up its stream only, and never runs on the thread of somebody who waits.
//
// Completion is a count: the n-th operation of a stream is over when completed() >= n. Events and the waits between
// streams are such (stream, n) pairs.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "reference/cuda/op.h"

namespace lockstep::host {

class Stream;

// Over when the stream has completed its seq-th operation.
struct Point {
  std::shared_ptr<Stream> stream;
  uint64_t seq = 0;
  bool reached() const;
};

// How a stream and the legacy default stream of its device wait for each other.
enum class StreamKind : uint8_t { legacy, blocking, non_blocking };

struct Seat;       // in a capture; see capture.h
struct HostQueue;  // the thread for user host functions; see host_call.cc

enum class Drive { idle, busy, waiting, progressed };

// What the head of a stream waits for: another stream, or a bell (an empty one means something in this process).
struct Blocked {
  Point on;
  WaitPoint wait_point;  // only where wanted: who spins has no use for it
  bool bell_wanted = false;
};

class Stream {
 public:
  Stream(int device, StreamKind kind, int priority);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const int device;
  const StreamKind kind;
  const int priority;
  const uint64_t id;  // never the same twice in a process

  // The operation starts when everything in `after` is over. Returns its number.
  uint64_t enqueue(std::unique_ptr<Op> op, std::vector<Point> after);

  uint64_t enqueued() const { return enqueued_.load(std::memory_order_seq_cst); }
  uint64_t completed() const { return completed_.load(std::memory_order_seq_cst); }
  bool pending() const { return completed() < enqueued(); }

  // Steps operations until number `target` is over, one waits, or `budget` steps are done. `busy`: another thread is at
  // it. When the result is `waiting`, `blocked` says what for.
  Drive drive(uint64_t target, int budget, Blocked* blocked = nullptr);

  HostQueue& host_queue();

  std::atomic<int> waiters{0};        // threads that drain this stream; the progress thread leaves it to them
  std::atomic<bool> orphaned{false};  // destroyed while it had work
  std::shared_ptr<Seat> seat;         // set while the stream is captured; guarded by capture.cc's lock

 private:
  struct Node {
    std::unique_ptr<Op> op;
    std::vector<Point> after;
    bool in_graph = false;
    int64_t begun = 0;  // when it was first stepped, if somebody listens
  };
  Step step_head(Node& head);
  Node* head();
  void pop();
  void tell(const Node& waiting, Blocked& blocked) const;

  std::mutex mutex_;  // the queue; only the thread that holds driving_ pops
  std::deque<Node> queue_;
  std::atomic<bool> driving_{false};
  Node* head_ = nullptr;  // the driver's: the front of the queue, when it has looked
  std::atomic<uint64_t> enqueued_{0};
  std::atomic<uint64_t> completed_{0};
  std::shared_ptr<HostQueue> host_queue_;
};

inline bool Point::reached() const { return stream == nullptr || stream->completed() >= seq; }

}  // namespace lockstep::host
