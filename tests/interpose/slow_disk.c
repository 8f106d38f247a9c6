// SPDX-License-Identifier: MIT
//
// A preload that makes a disk slow, as a network file system under load is: extending a file takes SLOW_DISK_MS, but for the
// first two times, which are a trace's beginning. The shim's own calls come here, too: the linker knows no other
// posix_fallocate. And it sets errno, as the C library's does where it has to write zeros instead.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int calls;

int posix_fallocate(int fd, off_t offset, off_t length) {
  const char* ms = getenv("SLOW_DISK_MS");
  if (ms && atomic_fetch_add(&calls, 1) >= 2) usleep((useconds_t)atoi(ms) * 1000);
  int (*real)(int, off_t, off_t) = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
  const int result = real(fd, offset, length);
  errno = EIO;
  return result;
}
