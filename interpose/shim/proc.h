// SPDX-License-Identifier: MIT
//
// The few facts the shim reads from /proc, without allocating. Everything here leaves errno as it was.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::shim {

// Reads a small file whole, terminated. -1 when it cannot be read.
long read_file(const char* path, char* to, size_t size);

struct ProcessTimes {
  uint64_t start_ticks;   // since boot; 0 = not known
  int64_t start_wall_s;
};
ProcessTimes process_times(int32_t pid);

struct TaskStat {
  char name[16];
  char state;             // 0 = the thread is gone
  uint64_t cpu_ns;
};
TaskStat task_stat(uint32_t tid);

// Calls visit(tid) for each thread of this process; returns how many there are.
unsigned for_each_task(void (*visit)(uint32_t tid, void* with), void* with);

uint32_t own_tid();

}  // namespace lockstep::shim
