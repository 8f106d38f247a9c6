// SPDX-License-Identifier: MIT
//
// See proc.h and report.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interpose/shim/report.h"
#include "interpose/shim/text.h"

namespace lockstep::shim {
namespace {

// The fields of a /proc stat line after the name, which may itself hold blanks and parentheses.
const char* after_name(const char* line) {
  const char* close = strrchr(line, ')');
  return close && close[1] == ' ' ? close + 2 : nullptr;
}

// Field `index` (3 = state) of a line that starts at field 3.
uint64_t field(const char* at, int index) {
  for (int i = 3; i < index; i++) {
    at = strchr(at, ' ');
    if (!at) return 0;
    at++;
  }
  uint64_t n = 0;
  parse_number(at, n);
  return n;
}

uint64_t ticks_per_second() {
  const long n = sysconf(_SC_CLK_TCK);
  return n > 0 ? static_cast<uint64_t>(n) : 100;
}

int64_t boot_time() {
  static int64_t cached;  // the same for all who ask, so a race is harmless
  if (cached) return cached;
  // "btime N" stands far down in /proc/stat on machines with many cores, so look for it piece by piece.
  const int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char piece[4096 + 32];
  size_t kept = 0;
  for (ssize_t n; (n = read(fd, piece + kept, 4096)) > 0;) {
    piece[kept + static_cast<size_t>(n)] = '\0';
    const char* found = strstr(piece, "\nbtime ");
    if (found && strchr(found + 7, '\n')) {
      found += 7;
      uint64_t seconds = 0;
      parse_number(found, seconds);
      cached = static_cast<int64_t>(seconds);
      break;
    }
    const size_t have = kept + static_cast<size_t>(n);
    kept = have < 31 ? have : 31;
    memmove(piece, piece + have - kept, kept);
  }
  close(fd);
  return cached;
}

}  // namespace

long read_file(const char* path, char* to, size_t size) {
  const int saved = errno;
  long got = -1;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    size_t used = 0;
    ssize_t n;
    while (used + 1 < size && (n = read(fd, to + used, size - 1 - used)) > 0) used += static_cast<size_t>(n);
    to[used] = '\0';
    got = static_cast<long>(used);
    close(fd);
  }
  errno = saved;
  return got;
}

ProcessTimes process_times(int32_t pid) {
  Text<64> path;
  path << "/proc/" << pid << "/stat";
  char line[1024];
  ProcessTimes out = {};
  if (read_file(path.text(), line, sizeof line) <= 0) return out;
  const char* at = after_name(line);
  if (!at) return out;
  const int saved = errno;
  out.start_ticks = field(at, 22);
  out.start_wall_s = boot_time() + static_cast<int64_t>(out.start_ticks / ticks_per_second());
  errno = saved;
  return out;
}

TaskStat task_stat(uint32_t tid) {
  Text<64> path;
  path << "/proc/self/task/" << tid << "/stat";
  char line[1024];
  TaskStat out = {};
  if (read_file(path.text(), line, sizeof line) <= 0) return out;
  const char* at = after_name(line);
  const char* open_paren = strchr(line, '(');
  if (!at || !open_paren) return out;
  const size_t length = static_cast<size_t>(at - 2 - (open_paren + 1));
  memcpy(out.name, open_paren + 1, length < sizeof out.name ? length : sizeof out.name - 1);
  out.state = *at;
  out.cpu_ns = (field(at, 14) + field(at, 15)) * (1000000000 / ticks_per_second());
  return out;
}

unsigned for_each_task(void (*visit)(uint32_t, void*), void* with) {
  const int saved = errno;
  const int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  unsigned count = 0;
  if (fd >= 0) {
    struct Entry {  // as the kernel writes it
      uint64_t inode;
      int64_t offset;
      unsigned short size;
      unsigned char type;
      char name[1];
    };
    alignas(8) char buffer[4096];
    long n;
    while ((n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
      for (long at = 0; at < n;) {
        const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
        const char* name = entry->name;
        uint64_t tid;
        if (parse_number(name, tid)) {
          count++;
          if (visit) visit(static_cast<uint32_t>(tid), with);
        }
        at += entry->size;
      }
    close(fd);
  }
  errno = saved;
  return count;
}

uint32_t own_tid() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

void report(const char* sentence) {
  const int saved = errno;
  Text<1024> line;
  line << "lockstep: " << sentence << "\n";
  if (write(2, line.text(), line.size()) < 0) {
    // Nobody to tell.
  }
  errno = saved;
}

}  // namespace lockstep::shim
