// SPDX-License-Identifier: MIT
//
// How streams move: the waiter's loop and the progress thread's.
//
// The progress thread must start work that nobody waits for, and must cost nothing otherwise. A wake-up by futex for
// every enqueue would cost more than a small all-reduce, so while the program is busy the thread looks at the streams
// every 0.1 ms by itself, and is asleep for good only when nothing was in flight for 10 ms; only then does an enqueue
// wake it. Streams somebody waits for it leaves alone: the waiter is faster, and would only meet it at the lock.

#include <pthread.h>

#include <limits>
#include <thread>

#include "reference/cuda/engine.h"
#include "reference/cuda/signals.h"

namespace lockstep::host {
namespace {

constexpr int kWaiterBudget = 64;    // steps before the waiter looks whether its point is reached
constexpr int kProgressBudget = 4;   // steps before the next stream gets its turn
constexpr uint64_t kNoTarget = std::numeric_limits<uint64_t>::max();
constexpr int64_t kShortNapNs = 100'000;
constexpr int64_t kLongNapNs = 2'000'000;
constexpr int kNapsBeforeSleep = 100;
constexpr int64_t kAsleepNs = 3'600'000'000'000;

void nap(int64_t ns) {
  const timespec length{0, static_cast<long>(ns)};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &length, nullptr);
}

}  // namespace

// --- waiting -------------------------------------------------------------------------------------------------------------

// One step for every stream that has work and nobody waiting for it. Whoever waits does this before he gives up the core:
// what he waits for may hang on another stream.
bool Engine::help(const Stream* except) {
  bool moved = false;
  const auto all = streams();
  for (const auto& stream : *all)
    if (stream.get() != except && stream->pending() && stream->waiters.load(std::memory_order_relaxed) == 0)
      moved |= stream->drive(kNoTarget, 1) == Drive::progressed;
  return moved;
}

void Engine::sleep_on_head(const Point& point, Backoff& backoff) {
  WaitPoint blocked;
  if (point.stream->drive(point.seq, kWaiterBudget, &blocked) == Drive::progressed) return;
  Bell& bell = blocked.bell != nullptr ? *blocked.bell : local_bell_;
  bell.sleep(backoff.next_bound_ns(), [&] {
    return !point.reached() && point.stream->drive(point.seq, kWaiterBudget) != Drive::progressed && !point.reached();
  });
}

void Engine::wait(const Point& point) {
  if (point.reached()) return;
  Stream& stream = *point.stream;
  stream.waiters.fetch_add(1);
  Backoff backoff(ranks_per_core());
  while (!point.reached()) {
    if (stream.drive(point.seq, kWaiterBudget) == Drive::progressed) {
      backoff.progressed();
    } else if (!backoff.pause()) {
      sleep_on_head(point, backoff);
    } else if (backoff.yielding()) {
      help(&stream);
    }
  }
  if (stream.waiters.fetch_sub(1) == 1 && (stream.pending() || stream.orphaned.load())) poke();
}

void Engine::wait_device(int device) {
  std::vector<Point> points;
  const auto all = streams();
  for (const auto& stream : *all)
    if (stream->device == device && stream->pending()) points.push_back({stream, stream->enqueued()});
  for (const Point& point : points) wait(point);
}

// Work nobody waits for, or a destroyed stream to let go of.
bool Engine::has_work_of_its_own() const {
  const auto all = streams();
  for (const auto& stream : *all)
    if (stream->pending() ? stream->waiters.load() == 0 : stream->orphaned.load()) return true;
  return false;
}

// --- the progress thread ---------------------------------------------------------------------------------------------------

void Engine::start_progress() {
  std::call_once(progress_once_, [this] {
    started_.store(true);
    const SignalsBlocked blocked;
    std::thread([this] {
      pthread_setname_np(pthread_self(), "lockstep-host");
      progress_loop();
    }).detach();
  });
}

// The list of streams must be let go of before sleeping, or it would keep destroyed streams and their threads alive.
Engine::Round Engine::step_unwaited_streams() {
  Round round;
  const auto all = streams();
  for (const auto& stream : *all) {
    if (!stream->pending() || stream->waiters.load() > 0) continue;
    round.pending = true;
    round.moved |= stream->drive(kNoTarget, kProgressBudget) == Drive::progressed;
  }
  return round;
}

void Engine::progress_loop() {
  int64_t nap_ns = kShortNapNs;
  int idle_naps = 0;
  for (;;) {
    const auto [moved, pending] = step_unwaited_streams();
    drop_finished_orphans();
    if (moved) {
      nap_ns = kShortNapNs;
      idle_naps = 0;
      continue;
    }
    if (!pending) {
      nap_ns = kShortNapNs;
      if (++idle_naps < kNapsBeforeSleep)
        nap(kShortNapNs);
      else
        progress_bell_.sleep(kAsleepNs, [this] { return !has_work_of_its_own(); });
    } else if (nap_ns <= kShortNapNs) {
      nap(nap_ns);
      nap_ns *= 2;
    } else {
      // Blocked, most likely by a peer. What peers do rings no bell here, so look now and then; new work does ring.
      progress_bell_.sleep(nap_ns, [] { return true; });
      nap_ns = nap_ns * 2 < kLongNapNs ? nap_ns * 2 : kLongNapNs;
    }
  }
}

}  // namespace lockstep::host
