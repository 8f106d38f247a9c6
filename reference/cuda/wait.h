// SPDX-License-Identifier: MIT
//
// How anybody here waits: poll a moment, then give the core away, then sleep until rung, never for ever without a
// bound.
//
// Ranks usually outnumber cores on the machines this runs on, so the one that is waited for often needs the very core
// the waiter spins on. Handing a flag over costs 0.1 us while both spin on cores of their own, 1.5 us by sched_yield,
// 3-25 us by futex; how long to try each depends on how crowded the machine is (set_ranks_here).
//
// Bells lie in memory that several processes map. std::atomic::wait would use a private futex there and never wake
// another process, and a process-shared mutex held by a killed rank would poison its peers, so this is a bare futex on
// a word that only counts up: a rank killed at any point leaves at most a stale `sleepers`, which costs a system call.

#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace lockstep::host {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

inline void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int64_t bound_ns) {
  const timespec bound{bound_ns / 1'000'000'000, bound_ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &bound, nullptr, 0);
}
inline void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps until one of several words changes; false where the kernel cannot (before 5.16, or not allowed).
struct FutexWaiter {  // struct futex_waitv, which older kernel headers lack
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
inline bool futex_wait_any(FutexWaiter* waiters, unsigned count, int64_t bound_ns) {
  constexpr long kFutexWaitv = 449;
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const int64_t ns = until.tv_nsec + bound_ns;
  until.tv_sec += ns / 1'000'000'000;
  until.tv_nsec = ns % 1'000'000'000;
  return syscall(kFutexWaitv, waiters, count, 0, &until, CLOCK_MONOTONIC) >= 0 || (errno != ENOSYS && errno != EPERM);
}

// Rung by whoever changes what others may be waiting for. The sequentially consistent order of "change, then look for
// sleepers" and "announce the sleep, then look again" is what makes a lost wake-up impossible.
struct alignas(64) Bell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};

  void ring() {
    if (sleepers.load(std::memory_order_seq_cst) == 0) return;
    rings.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(rings);
  }
  // Sleeps until rung or the bound is over, unless still_waiting() says that there is no need to.
  template <class StillWaiting>
  void sleep(int64_t bound_ns, StillWaiting still_waiting) {
    const uint32_t seen = rings.load(std::memory_order_seq_cst);
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (still_waiting()) futex_wait(rings, seen, bound_ns);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
};

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// One wait. pause() spins or yields and returns true; false means it is time to sleep, for at most bound_ns().
class Backoff {
 public:
  // With a core of its own a waiter gains nothing by giving it to somebody else, who may keep it for milliseconds; a
  // patient one spins ten times as long. Threads of ours that share a core with such a waiter are not patient.
  enum class Patience { little, much };
  explicit Backoff(int ranks_per_core, Patience patience = Patience::little)
      : spins_(patience == Patience::much ? 1000 : 100) {
    if (ranks_per_core <= 1) return;
    spins_ = ranks_per_core > 4 ? 2 : 10;
    yields_ = ranks_per_core > 4 ? 2 : 20;
  }
  bool pause() {
    if (spun_ < spins_) {
      ++spun_;
      cpu_relax();
      return true;
    }
    if (yielded_ < yields_) {
      ++yielded_;
      sched_yield();
      return true;
    }
    return false;
  }
  bool yielding() const { return spun_ >= spins_; }
  int64_t next_bound_ns() {
    const int64_t bound = bound_ns_;
    bound_ns_ = std::min<int64_t>(bound_ns_ * 2, 20'000'000);
    return bound;
  }
  void progressed() {
    spun_ = yielded_ = 0;
    bound_ns_ = 200'000;
  }

 private:
  int spins_;
  int yields_ = 50;
  int spun_ = 0;
  int yielded_ = 0;
  int64_t bound_ns_ = 200'000;
};

}  // namespace lockstep::host
