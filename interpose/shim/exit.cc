// SPDX-License-Identifier: MIT
//
// See exit.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/exit.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/proc.h"
#include "interpose/shim/real.h"
#include "interpose/shim/recorder.h"

namespace lockstep::shim {
namespace {

constexpr int kFatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM};

void note(trace::ExitKind kind, int code) {
  // The child of a vfork runs in our memory, and ends itself when its exec failed.
  if (!recording() || recorder.trace.header->pid != getpid()) return;
  trace::ExitRecord& exit = recorder.trace.status->exit;
  if (exit.kind.load(std::memory_order_relaxed) == static_cast<uint32_t>(trace::ExitKind::fatal_signal)) return;
  exit.code = code;
  exit.wall_ns = nanoseconds(CLOCK_REALTIME);
  exit.mono_ns = nanoseconds(CLOCK_MONOTONIC);
  exit.tid = own_tid();
  exit.kind.store(static_cast<uint32_t>(kind), std::memory_order_release);
}

void at_exit(int status, void*) { note(trace::ExitKind::exit, status); }

void on_fatal(int signal, siginfo_t* info, void*) {
  note(trace::ExitKind::fatal_signal, signal);
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
  // A fault comes again by itself when we return, with the faulting registers in the core dump. A signal that was sent
  // has to be sent again.
  const bool fault = info && info->si_code > 0 && signal != SIGABRT && signal != SIGTERM;
  if (!fault) syscall(SYS_tgkill, getpid(), own_tid(), signal);
}

void watch_signals() {
  for (int signal : kFatal) {
    struct sigaction old;
    if (sigaction(signal, nullptr, &old) != 0 || (old.sa_flags & SA_SIGINFO) || old.sa_handler != SIG_DFL) continue;
    struct sigaction ours = {};
    ours.sa_sigaction = on_fatal;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(signal, &ours, nullptr);
  }
}

void in_child() { forget_recording(); }

}  // namespace

void watch_exits() {
  static bool watching;  // the child of a fork inherits all of this
  if (watching) return;
  watching = true;
  on_exit(at_exit, nullptr);
  pthread_atfork(nullptr, nullptr, in_child);
  watch_signals();
}

}  // namespace lockstep::shim

// Ways to end that run no exit handler. Without a note a clean end would look like a SIGKILL.
namespace {

using End = void (*)(int);

[[noreturn]] void end_by(const char* name, int status) {
  lockstep::shim::note(lockstep::trace::ExitKind::exit, status);
  if (const auto real = reinterpret_cast<End>(lockstep::shim::find_symbol(RTLD_NEXT, name))) real(status);
  for (;;) syscall(SYS_exit_group, status);
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) void _exit(int status) { end_by("_exit", status); }
__attribute__((visibility("default"))) void _Exit(int status) noexcept { end_by("_Exit", status); }
__attribute__((visibility("default"))) void quick_exit(int status) noexcept { end_by("quick_exit", status); }
}
