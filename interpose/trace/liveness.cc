// SPDX-License-Identifier: MIT
//
// Is the process of a trace alive? It holds a lock on its file for as long as it lives, and the kernel gives the lock
// back however it ends. That holds across containers and, with a lock daemon, across hosts. /proc is the second
// witness, for file systems that do not lock and for a process that has called exec, and is asked only about this very
// machine.

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "interpose/trace/reader.h"
#include "interpose/trace/reader_parts.h"

namespace lockstep::trace {
namespace {

bool locked(const std::string& path) {
  const detail::InputFile file(path);
  if (!file.is_open()) return false;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(file.fd(), F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

bool on_this_machine(const FileHeader& header) {
  if (first_line("/proc/sys/kernel/random/boot_id") != header.boot_id) return false;
  struct stat info;
  return stat("/proc/self/ns/pid", &info) == 0 && info.st_ino == header.pid_namespace;
}

// Field 3 and field 22 of /proc/PID/stat, counted from the last parenthesis since the name may hold anything.
bool runs_here(const FileHeader& header) {
  const std::string line = first_line("/proc/" + std::to_string(header.pid) + "/stat");
  const size_t close = line.rfind(')');
  if (close == std::string::npos || close + 2 >= line.size()) return false;
  const char state = line[close + 2];
  if (state == 'Z' || state == 'X') return false;
  size_t at = close + 1;
  for (int field = 3; field <= 22 && at != std::string::npos; field++) at = line.find(' ', at) + 1;
  return strtoull(line.c_str() + at, nullptr, 10) == header.pid_start_ticks;
}

}  // namespace

Liveness look_alive(const TraceFile& file) {
  if (locked(file.path)) return Liveness::alive;
  if (!on_this_machine(file.header)) return Liveness::elsewhere;
  return runs_here(file.header) ? Liveness::alive : Liveness::dead;
}

}  // namespace lockstep::trace
