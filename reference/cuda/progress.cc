// SPDX-License-Identifier: MIT
//
// How streams move: the waiter's loop and the progress thread's.
//
// The progress thread must start work that nobody waits for, and must cost nothing otherwise. A wake-up by futex for
// every enqueue would cost more than a small all-reduce, so while the program is busy the thread looks at the streams
// every 0.1 ms by itself, and is asleep for good only when nothing was in flight for 10 ms; only then does an enqueue
// wake it. While work is in flight that waits for peers it sleeps on all their bells at once. Streams somebody waits
// for it leaves alone: the waiter is faster, and would only meet it at the lock.

#include <pthread.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "reference/cuda/engine.h"
#include "reference/cuda/signals.h"

namespace lockstep::host {
namespace {

constexpr int kWaiterBudget = 64;   // steps before the waiter looks whether its point is reached
constexpr int kProgressBudget = 4;  // steps before the next stream gets its turn
constexpr uint64_t kNoTarget = std::numeric_limits<uint64_t>::max();
constexpr int64_t kNapNs = 100'000;
constexpr int kNapsBeforeSleep = 100;
constexpr int64_t kAsleepNs = 3'600'000'000'000;
constexpr size_t kMaxBells = 100;  // the kernel takes 128

void nap(int64_t ns) {
  const timespec length{0, static_cast<long>(ns)};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &length, nullptr);
}

}  // namespace

// --- waiting
// -------------------------------------------------------------------------------------------------------------

// One step for every stream that has work and nobody waiting for it: what one waits for may hang on a peer that is a
// thread of this process.
void Engine::help(const Stream* except) {
  const auto all = streams();
  for (const auto& stream : *all)
    if (stream.get() != except && stream->pending() && stream->waiters.load(std::memory_order_relaxed) == 0)
      stream->drive(kNoTarget, 1);
}

// Drives a point's stream, and the one that its head waits for, and so on; returns whether anything moved. `last` says
// what the last of them waits for.
static bool drive_chain(const Point& point, Blocked& last) {
  last.on = {};
  if (point.stream->drive(point.seq, kWaiterBudget, &last) == Drive::progressed) return true;
  while (last.on.stream != nullptr) {
    const Point next = std::move(last.on);
    last.on = {};
    if (next.stream->drive(next.seq, kWaiterBudget, &last) == Drive::progressed) return true;
  }
  return false;
}

void Engine::sleep_on_head(const Point& point, Backoff& backoff) {
  Blocked blocked;
  blocked.bell_wanted = true;
  if (drive_chain(point, blocked)) return;
  Bell& bell = blocked.wait_point.bell != nullptr ? *blocked.wait_point.bell : local_bell_;
  bell.sleep(backoff.next_bound_ns(), [&] {
    Blocked ignored;
    return !point.reached() && !drive_chain(point, ignored) && !point.reached();
  });
}

void Engine::wait(const Point& point) {
  if (point.reached()) return;
  Stream& stream = *point.stream;
  stream.waiters.fetch_add(1);
  Backoff backoff(ranks_per_core(), Backoff::Patience::much);
  Blocked blocked;
  while (!point.reached()) {
    if (drive_chain(point, blocked)) {
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

// --- the progress thread
// ---------------------------------------------------------------------------------------------------

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
    Blocked blocked;
    blocked.bell_wanted = true;
    const Drive result = stream->drive(kNoTarget, kProgressBudget, &blocked);
    round.moved |= result == Drive::progressed;
    // A head that waits for another stream goes on when that one does.
    if (result == Drive::waiting && blocked.on.stream == nullptr)
      round.blocked.push_back(std::move(blocked.wait_point));
  }
  return round;
}

// Until a peer, another thread of this process or new work rings, but at most so long.
void Engine::nap_until_rung(const std::vector<WaitPoint>& blocked, int64_t bound_ns) {
  std::vector<Bell*> bells{&progress_bell_, &local_bell_};
  for (const WaitPoint& point : blocked)
    if (point.bell != nullptr && bells.size() < kMaxBells) bells.push_back(point.bell);
  std::vector<FutexWaiter> waiters;
  for (Bell* bell : bells) {
    constexpr uint32_t kSize32 = 2;  // shared between processes, as no private flag is set
    waiters.push_back({bell->rings.load(), reinterpret_cast<uint64_t>(&bell->rings), kSize32, 0});
    bell->sleepers.fetch_add(1);
  }
  if (!step_unwaited_streams().moved &&
      !futex_wait_any(waiters.data(), static_cast<unsigned>(waiters.size()), bound_ns))
    nap(std::min(bound_ns, 10 * kNapNs));
  for (Bell* bell : bells) bell->sleepers.fetch_sub(1);
}

void Engine::progress_loop() {
  Backoff backoff(1);
  int idle_naps = 0;
  for (;;) {
    const Round round = step_unwaited_streams();
    drop_finished_orphans();
    if (round.moved) {
      backoff = Backoff(ranks_per_core());
      idle_naps = 0;
    } else if (round.pending) {
      if (!backoff.pause()) nap_until_rung(round.blocked, backoff.next_bound_ns());
    } else if (++idle_naps < kNapsBeforeSleep) {
      nap(kNapNs);
    } else {
      progress_bell_.sleep(kAsleepNs, [this] { return !has_work_of_its_own(); });
    }
  }
}

}  // namespace lockstep::host
