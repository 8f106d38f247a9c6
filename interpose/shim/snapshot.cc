// SPDX-License-Identifier: MIT
//
// See snapshot.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/snapshot.h"

#include <string.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/proc.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/text.h"

namespace lockstep::shim {
namespace {

using trace::SnapshotBody;

struct Round {
  uint32_t number;
  char why;
  uint32_t self;
};

// Where a thread is that waits in the kernel: "<number> <six arguments> <sp> <pc>", or "-1 <sp> <pc>", or "running".
struct Blocked {
  bool known = false;
  uint64_t pc = 0, sp = 0;
};

Blocked blocked_at(uint32_t tid) {
  Text<64> path;
  path << "/proc/self/task/" << tid << "/syscall";
  char line[256];
  Blocked out;
  if (read_file(path.text(), line, sizeof line) <= 0) return out;
  const char* end = strrchr(line, ' ');
  if (!end) return out;  // running
  const char* before = end;
  while (before > line && before[-1] != ' ') before--;
  if (strncmp(before, "0x", 2) != 0 || strncmp(end + 1, "0x", 2) != 0) return out;
  const char* sp = before + 2;
  const char* pc = end + 3;
  out.known = parse_hex(sp, out.sp) && parse_hex(pc, out.pc);
  return out;
}

void store(const Round& round, uint32_t tid, const TaskStat& stat, const uint64_t* pcs, uint32_t depth) {
  constexpr size_t kFixed = offsetof(SnapshotBody, pc);
  trace::ArenaHeader* header = trace::arena_reserve(recorder.trace, trace::ArenaKind::snapshot, kFixed + depth * 8);
  if (!header) return;
  auto* body = static_cast<SnapshotBody*>(trace::arena_body(header));
  memset(static_cast<void*>(body), 0, kFixed);
  body->wall_ns = nanoseconds(CLOCK_REALTIME);
  body->mono_ns = nanoseconds(CLOCK_MONOTONIC);
  body->round = round.number;
  body->tid = tid;
  body->source = static_cast<uint16_t>(trace::SnapshotSource::syscall_state);
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

void snap(uint32_t tid, void* with) {
  const Round& round = *static_cast<Round*>(with);
  if (tid == round.self) return;
  const TaskStat stat = task_stat(tid);
  if (stat.state == 0) return;
  const Blocked at = blocked_at(tid);
  store(round, tid, stat, &at.pc, at.known ? 1 : 0);
}

}  // namespace

void take_snapshot(uint32_t number, char why) {
  Round round = {number, why, own_tid()};
  for_each_task(snap, &round);
}

}  // namespace lockstep::shim
