// SPDX-License-Identifier: MIT
//
// See helper.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/helper.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/hang.h"
#include "interpose/shim/modules.h"
#include "interpose/shim/proc.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/report.h"
#include "interpose/shim/states.h"
#include "interpose/shim/thread.h"

namespace lockstep::shim {
namespace {

constexpr unsigned kSegmentsAhead = 3;

void beat(unsigned threads) {
  trace::Heartbeat& heartbeat = recorder.trace.status->heartbeat;
  const trace::ClockPair clock = read_clocks(recorder.tsc);
  const uint64_t cpu = static_cast<uint64_t>(nanoseconds(CLOCK_PROCESS_CPUTIME_ID));
  trace::open_seqlock(heartbeat.lock);
  heartbeat.threads = threads;
  heartbeat.count++;
  heartbeat.clock = clock;
  heartbeat.cpu_ns = cpu;
  trace::close_seqlock(heartbeat.lock);
}

void look_at_threads() {
  for (unsigned i = 0; i < trace::kThreadSlots; i++) {
    trace::ThreadSlot& slot = recorder.trace.threads[i];
    const uint32_t tid = slot.tid.load(std::memory_order_acquire);
    if (tid == 0) continue;
    const TaskStat stat = task_stat(tid);
    if (stat.state == 0) {
      reclaim_slot(i, tid);
      continue;
    }
    put_name(slot, stat.name);
    slot.cpu_ns.store(stat.cpu_ns, std::memory_order_relaxed);
    slot.state.store(static_cast<uint32_t>(stat.state), std::memory_order_relaxed);
  }
}

// Four looks per hang threshold, but at least one a second and at most twenty.
uint32_t tick_ms() {
  const uint32_t hang = recorder.config.hang_ms;
  if (hang == 0 || hang >= 4000) return 1000;
  return hang < 200 ? 50 : hang / 4;
}

// Until the next tick is due. Writers that enter a new segment wake us earlier, for more ring.
void wait_until(int64_t due) {
  for (;;) {
    grow_ahead(recorder.trace, kSegmentsAhead);
    const int64_t left = due - nanoseconds(CLOCK_MONOTONIC);
    if (left <= 0) return;
    const struct timespec timeout = {left / 1000000000, left % 1000000000};
    const uint32_t rung = recorder.trace.bell.load(std::memory_order_relaxed);
    grow_ahead(recorder.trace, kSegmentsAhead);
    syscall(SYS_futex, &recorder.trace.bell, FUTEX_WAIT_PRIVATE, rung, &timeout, nullptr, 0);
  }
}

void* help(void*) {
  prctl(PR_SET_NAME, "lockstep");
  const int64_t tick = int64_t{tick_ms()} * 1000000;
  int64_t due = nanoseconds(CLOCK_MONOTONIC);
  for (;;) {
    beat(for_each_task(nullptr, nullptr));
    look_at_threads();
    start_driver_thread();
    watch_for_hangs();
    write_modules();
    due += tick;
    const int64_t now = nanoseconds(CLOCK_MONOTONIC);
    if (due < now) due = now + tick;  // the process was stopped, or the machine slept
    wait_until(due);
  }
  return nullptr;
}

}  // namespace

void start_helper() {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 512 << 10);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, help, nullptr);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  recorder.trace.helped.store(error == 0, std::memory_order_relaxed);
  if (error != 0) report("no helper thread could be started: this trace has no heartbeat and takes no snapshots");
}

}  // namespace lockstep::shim
