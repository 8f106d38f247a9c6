// SPDX-License-Identifier: MIT
//
// See snapshot.h. A thread that waits in the kernel is left alone: a signal would end many of the waits it may be in
// with EINTR, SA_RESTART or not. Its program counter and stack pointer stand in /proc. Only a thread that runs is sent
// a signal, whose handler does no more than copy its registers and its stack; one that does not answer in time, because
// it blocks the signal or was stopped, is recorded with its state alone.

#include "interpose/shim/libc.h"

#include "interpose/shim/snapshot.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/proc.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/text.h"
#include "interpose/shim/unwind.h"

namespace lockstep::shim {
namespace {

using trace::SnapshotBody;
using trace::SnapshotSource;

constexpr unsigned kMostSnapshotFrames = 128;
constexpr int64_t kAnswerNs = 100 * 1000000;

Memory* memory;  // mapped at the first snapshot

struct Round {
  uint32_t number;
  char why;
  uint32_t self;
};

// Where a thread is that waits in the kernel: "<number> <six arguments> <sp> <pc>", or "-1 <sp> <pc>", or "running".
bool read_blocked(uint32_t tid, Registers& out) {
  Text<64> path;
  path << "/proc/self/task/" << tid << "/syscall";
  char line[256];
  if (read_file(path.text(), line, sizeof line) <= 0) return false;
  const char* end = strrchr(line, ' ');
  if (!end) return false;
  const char* before = end;
  while (before > line && before[-1] != ' ') before--;
  if (strncmp(before, "0x", 2) != 0 || strncmp(end + 1, "0x", 2) != 0) return false;
  const char *sp = before + 2, *pc = end + 3;
  uint64_t value;
  if (!parse_hex(sp, value)) return false;
  out.set(kRsp, value);
  if (!parse_hex(pc, value)) return false;
  out.set(kRip, value);
  return true;
}

// --- running threads -------------------------------------------------------------------------------------------------

// One question at a time; an answer that comes too late finds another number and is dropped.
struct Question {
  std::atomic<uint32_t> tid;      // who is asked; 0 = nobody
  std::atomic<uint32_t> answered;
  Registers registers;
  size_t stack_size;
};
constinit Question question = {};

void read_context(const void* context, Registers& out) {
#if defined(__x86_64__)
  const auto& g = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  constexpr int kOrder[kRegisters] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
                                      REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
  out = {};
  for (unsigned i = 0; i < kRegisters; i++) out.set(i, static_cast<uint64_t>(g[kOrder[i]]));
#else
  (void)context;
  out = {};
#endif
}

void on_question(int, siginfo_t*, void* context) {
  uint32_t self = own_tid();
  Memory* const space = memory;
  if (!question.tid.compare_exchange_strong(self, 0, std::memory_order_acquire)) return;
  read_context(context, question.registers);
  const uint64_t sp = question.registers.value[kRsp];
  // Page by page, so that the end of the stack cuts the copy short and does not refuse it.
  size_t size = 0;
  while (size < Memory::kMostStack) {
    const size_t page = 4096 - (sp + size) % 4096;
    const size_t want = page < Memory::kMostStack - size ? page : Memory::kMostStack - size;
    const size_t got = copy_own_memory(sp + size, space->stack_space() + size, want);
    size += got;
    if (got < want) break;
  }
  question.stack_size = size;
  question.answered.store(1, std::memory_order_release);
}

// A signal nobody has a use for, taken once and kept: given back, a late one would end the process.
int question_signal() {
  static int taken;
  if (taken) return taken > 0 ? taken : 0;
  taken = -1;
  for (int number = SIGRTMAX - 2; number > SIGRTMIN + 8; number--) {
    struct sigaction old;
    if (sigaction(number, nullptr, &old) != 0 || (old.sa_flags & SA_SIGINFO) || old.sa_handler != SIG_DFL) continue;
    struct sigaction ours = {};
    ours.sa_sigaction = on_question;
    ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    if (sigaction(number, &ours, nullptr) == 0) taken = number;
    break;
  }
  return taken > 0 ? taken : 0;
}

bool ask_running(uint32_t tid, Registers& out) {
  const int number = question_signal();
  if (!number) return false;
  question.answered.store(0, std::memory_order_relaxed);
  question.tid.store(tid, std::memory_order_release);
  if (syscall(SYS_tgkill, getpid(), tid, number) == 0) {
    const int64_t deadline = nanoseconds(CLOCK_MONOTONIC) + kAnswerNs;
    while (!question.answered.load(std::memory_order_acquire) && nanoseconds(CLOCK_MONOTONIC) < deadline) {
      const struct timespec moment = {0, 500000};
      nanosleep(&moment, nullptr);
    }
  }
  uint32_t asked = tid;
  if (!question.tid.compare_exchange_strong(asked, 0, std::memory_order_acquire)) {
    // Taken up: it is copying, or done. Copying takes microseconds, unless the thread was stopped in the middle of it;
    // then the space it copies into stays its own for good.
    const int64_t deadline = nanoseconds(CLOCK_MONOTONIC) + kAnswerNs;
    while (!question.answered.load(std::memory_order_acquire)) {
      if (nanoseconds(CLOCK_MONOTONIC) > deadline) {
        memory = nullptr;
        return false;
      }
      const struct timespec moment = {0, 500000};
      nanosleep(&moment, nullptr);
    }
  } else {
    return false;  // no answer
  }
  out = question.registers;
  memory->set_stack(out.value[kRsp], question.stack_size);
  return true;
}

// --- one thread ------------------------------------------------------------------------------------------------------

void store(const Round& round, uint32_t tid, const TaskStat& stat, SnapshotSource source, const uint64_t* pcs,
           uint32_t depth) {
  constexpr size_t kFixed = offsetof(SnapshotBody, pc);
  trace::ArenaHeader* header = trace::arena_reserve(recorder.trace, trace::ArenaKind::snapshot, kFixed + depth * 8);
  if (!header) return;
  auto* body = static_cast<SnapshotBody*>(trace::arena_body(header));
  memset(static_cast<void*>(body), 0, kFixed);
  body->wall_ns = nanoseconds(CLOCK_REALTIME);
  body->mono_ns = nanoseconds(CLOCK_MONOTONIC);
  body->round = round.number;
  body->tid = tid;
  body->source = static_cast<uint16_t>(source);
  body->state = stat.state;
  body->why = round.why;
  memcpy(body->thread_name, stat.name, sizeof body->thread_name);
  Text<64> path;
  path << "/proc/self/task/" << tid << "/wchan";
  read_file(path.text(), body->wait_channel, sizeof body->wait_channel);
  body->depth = depth;
  memcpy(reinterpret_cast<char*>(body) + kFixed, pcs, depth * 8);
  trace::arena_commit(header);
}

bool ready() {
  if (memory) return true;
  void* space = mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return false;
  memory = static_cast<Memory*>(space);
  return true;
}

void snap(uint32_t tid, void* with) {
  const Round& round = *static_cast<Round*>(with);
  if (tid == round.self) return;
  const TaskStat stat = task_stat(tid);
  if (stat.state == 0) return;
  uint64_t pcs[kMostSnapshotFrames];
  unsigned depth = 0;
  SnapshotSource source = SnapshotSource::syscall_state;
  if (ready()) {
    memory->forget();
    Registers registers = {};
    if (read_blocked(tid, registers)) {
      memory->take_stack(registers.value[kRsp]);
      depth = unwind(registers, *memory, pcs, kMostSnapshotFrames);
    } else if (stat.state == 'R' && ask_running(tid, registers)) {
      source = SnapshotSource::signal;
      depth = unwind(registers, *memory, pcs, kMostSnapshotFrames);
    }
  }
  store(round, tid, stat, source, pcs, depth);
}

}  // namespace

void take_snapshot(uint32_t number, char why) {
  Round round = {number, why, own_tid()};
  for_each_task(snap, &round);
}

}  // namespace lockstep::shim
