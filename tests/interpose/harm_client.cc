// SPDX-License-Identifier: MIT
//
// A program that gives a tracer a hard time in the way its first argument names: threads, forks, signals, libraries
// that come and go, a folder that is gone. It prints what it saw, each result of NCCL and each change of errno among
// it, so that a run with the shim can be compared with one without it.

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "lockstep.h"
#include "tests/interpose/client_parts.h"

using namespace lockstep;

namespace {

// A call whose result counts, and whose errno must be what it was.
std::atomic<int> sum, changed;
int checked(ncclComm_t comm, size_t count) {
  errno = ENOTTY;
  const int result = all_reduce(comm, count);
  changed += errno != ENOTTY;
  sum += result + 1;
  return result;
}
void say_sums() { printf("%d results, errno changed %d times\n", sum.load(), changed.load()); }

void burst(int count) {
  ncclComm_t comm = init();
  for (int i = 0; i < count; i++) checked(comm, i % 100 == 99 ? 1004 : 8);
  say_sums();
}

// As burst, with pauses, and says whether a call took long.
void burst_slow(int count) {
  ncclComm_t comm = init();
  int slow = 0;
  for (int i = 0; i < count; i++) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    checked(comm, 8);
    clock_gettime(CLOCK_MONOTONIC, &after);
    slow += (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 2500;
    if (i % 4096 == 4095) usleep(300000);  // a training computes, too
  }
  say_sums();
  printf("%d slow\n", slow);
}

void threads(int count) {
  ncclComm_t comm = init();
  for (int done = 0; done < count; done += 50) {
    std::vector<std::thread> some;
    for (int i = 0; i < 50; i++)
      some.emplace_back([=] { checked(comm, static_cast<size_t>(done + i + 10) % 900 + 10); });
    for (std::thread& thread : some) thread.join();
  }
  say_sums();
}

void share(int count) {
  ncclComm_t comm = init();
  for (int i = 0; i < 4; i++) checked(comm, 8);  // alone at first
  std::vector<std::thread> some;
  for (int t = 0; t < count; t++)
    some.emplace_back([=] {
      for (int i = t ? 0 : 4; i < 20000; i++) checked(comm, 8);
    });
  for (std::thread& thread : some) thread.join();
  say_sums();
}

int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

void forks() {
  ncclComm_t comm = init(0, 2);
  checked(comm, 20);
  const pid_t silent = fork();
  if (silent == 0) {
    // In the parent's communicator: not recorded, and not into the parent's file.
    _exit(checked(comm, 1004) + 10);
  }
  printf("silent child %d\n", status_of(silent));
  const pid_t own = fork();
  if (own == 0) {
    ncclComm_t mine = init(1, 2);
    checked(mine, 22);
    exit(5);
  }
  printf("child %d\n", status_of(own));
  checked(comm, 23);
  say_sums();
}

void fork_inside() {
  ncclComm_t comm = init();
  const pid_t parent = getpid();
  checked(comm, 1500);
  if (getpid() != parent) {
    checked(comm, 30);
    _exit(changed ? 4 : 3);
  }
  checked(comm, 31);
  int status = 0;
  wait(&status);
  printf("child %d\n", WEXITSTATUS(status));
  say_sums();
}

void communicators(int count) {
  ncclComm_t keep = init(2, 5);
  int destroyed = 0;
  for (int i = 0; i < count; i++) {
    ncclComm_t comm = init(0, 3);
    checked(comm, 9);
    destroyed += ncclCommDestroy(comm) == ncclSuccess;
  }
  checked(keep, 10);
  printf("%d destroyed\n", destroyed);
  say_sums();
}

void remove_folder() {
  ncclComm_t comm = init();
  checked(comm, 8);
  const std::string command = "rm -rf '" + std::string(getenv("LOCKSTEP_DIR")) + "'";
  printf("removed %d\n", system(command.c_str()));
  for (int i = 0; i < 20000; i++) checked(comm, 8);  // the ring grows on, in a file without a name
  say_sums();
}

// As a daemon does; then it opens so many files of its own that one of them has the number the trace had.
void close_descriptors() {
  ncclComm_t comm = init();
  checked(comm, 8);
  for (int fd = 3; fd < 1024; fd++) close(fd);
  std::vector<FILE*> own;
  for (int i = 0; i < 200; i++) own.push_back(tmpfile());
  for (int i = 0; i < 30000; i++) checked(comm, 8);  // the ring wants to grow
  for (FILE* file : own) fputs("mine", file);
  size_t right = 0;
  for (FILE* file : own) {
    fseek(file, 0, SEEK_END);
    right += ftell(file) == 4;
    fclose(file);
  }
  printf("%zu files of its own are as it wrote them\n", right);
  say_sums();
}

void close_and_open(const char* plugin) {
  for (int i = 0; i < 3; i++) {
    void* library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    printf("%d\n", reinterpret_cast<int (*)()>(dlsym(library, "use_nccl"))());
    dlclose(library);
  }
}

// --- how much memory the process takes
// ---------------------------------------------------------------------------------------

// Of /proc/self/status, in KiB.
long status_kib(const char* field) {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  long value = -1;
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, field, strlen(field)) == 0) value = atol(line + strlen(field) + 1);
  if (file) fclose(file);
  return value;
}

// Two ways down a level, so that there are as many stacks as a caller wants.
template <int level, int side>
__attribute__((noinline)) int along(unsigned path, ncclComm_t comm) {
  int result;
  if constexpr (level == 0)
    result = checked(comm, 8);
  else
    result = path >> (level - 1) & 1 ? along<level - 1, 1>(path, comm) : along<level - 1, 0>(path, comm);
  asm volatile("" : "+r"(result));  // no tail call, and no merging of the two sides
  return result + side;
}

// What a thread of a training does: operations, groups, messages, marks, along many stacks.
void work(ncclComm_t comm, int calls, unsigned first_path) {
  for (int i = 0; i < calls; i++) along<17, 0>(first_path + static_cast<unsigned>(i), comm);
  ncclGroupStart();
  for (int i = 0; i < 32; i++) ncclSend(buffer, 5, ncclInt8, i % 4, comm, stream);
  ncclGroupEnd();
  lockstep_sample_id("shard:17");
}

// Communicators that all live at once, with messages on each.
void many_communicators(int count, int calls) {
  const long before = status_kib("RssAnon:");
  for (int i = 0; i < count; i++) work(init(1, 512), calls, 0);
  printf("%ld\n", status_kib("RssAnon:") - before);
}

// Waves of threads that all live at once and then are gone; says what the process takes with the last wave and after
// it.
void memory(int waves, int count, int calls) {
  ncclComm_t comm = init();
  long with_first = 0, with_last = 0;
  for (int wave = 0; wave < waves; wave++) {
    pthread_barrier_t done, leave;
    pthread_barrier_init(&done, nullptr, static_cast<unsigned>(count) + 1);
    pthread_barrier_init(&leave, nullptr, static_cast<unsigned>(count) + 1);
    std::vector<std::thread> some;
    for (int i = 0; i < count; i++)
      some.emplace_back([&, i] {
        work(comm, calls, static_cast<unsigned>((wave * count + i) * calls));
        pthread_barrier_wait(&done);
        pthread_barrier_wait(&leave);
      });
    pthread_barrier_wait(&done);
    (wave ? with_last : with_first) = status_kib("RssAnon:");
    pthread_barrier_wait(&leave);
    for (std::thread& thread : some) thread.join();
  }
  printf("%ld %ld %ld\n", with_first, with_last, status_kib("RssAnon:"));
}

// A libnccl that is older than the program hopes: it looks first, as programs do, by handle and as the next library.
void older_library() {
  checked(init(), 8);
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  printf("libnccl %d\n", library != nullptr);
  for (const char* name : {"ncclAllReduce", "ncclCommGrow", "ncclAlltoAll", "ncclDevCommCreate", "ncclFromTheFuture"}) {
    printf("%s %d", name, dlsym(library, name) != nullptr);
    const char* why = dlerror();
    printf(" %s\n", why ? why : "-");
  }
  say_sums();
}

void signals(bool restart) {
  ncclComm_t comm = init();
  static int handled;
  struct sigaction action = {};
  action.sa_handler = [](int) { handled++; };
  action.sa_flags = restart ? SA_RESTART : 0;
  sigaction(SIGALRM, &action, nullptr);
  checked(comm, 8);
  int ends[2];
  if (pipe(ends) != 0) return;
  std::thread writer([=] {
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, nullptr);
    usleep(1500000);
    if (write(ends[1], "x", 1) != 1) abort();
  });
  ualarm(800000, 0);
  char byte = 0;
  int interrupted = 0;
  while (read(ends[0], &byte, 1) != 1) interrupted += errno == EINTR;
  writer.join();
  checked(comm, 8);
  printf("%d handled, %d interrupted, %c\n", handled, interrupted, byte);
  say_sums();
}

// While another thread is inside a collective that never returns.
void exit_beside(int status) {
  ncclComm_t comm = init();
  checked(comm, 8);
  say_sums();
  fflush(stdout);
  std::thread inside([=] { all_reduce(comm, 1200); });
  usleep(100000);
  _exit(status);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? atoi(argv[2]) : 0;
  if (what == "burst") burst(number);
  if (what == "burst-slow") burst_slow(number);
  if (what == "threads") threads(number);
  if (what == "share") share(number);
  if (what == "forks") forks();
  if (what == "fork-inside") fork_inside();
  if (what == "communicators") communicators(number);
  if (what == "remove-folder") remove_folder();
  if (what == "close-descriptors") close_descriptors();
  if (what == "dlclose") close_and_open(argv[2]);
  if (what == "memory") memory(number, atoi(argv[3]), atoi(argv[4]));
  if (what == "many-communicators") many_communicators(number, atoi(argv[3]));
  if (what == "older-library") older_library();
  if (what == "signals") signals(argv[2][0] == 'r');
  if (what == "exit-beside") exit_beside(number);
  return 0;
}
