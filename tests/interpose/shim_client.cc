// SPDX-License-Identifier: MIT
//
// A program that uses NCCL in the way its first argument names, for tests of the shim. It prints what it saw, so that a
// run with the shim can be compared with one without it.

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "interpose/abi/nccl.h"
#include "lockstep.h"

namespace {

ncclComm_t init(int rank = 1, int nranks = 4) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm = nullptr;
  ncclCommInitRank(&comm, nranks, id, rank);
  return comm;
}

char buffer[64];
cudaStream_t const stream = reinterpret_cast<cudaStream_t>(0x77);

int all_reduce(ncclComm_t comm, size_t count) {
  return ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclMax, comm, stream);
}

// Results and errno of calls that fail, succeed, and set errno.
void results() {
  ncclComm_t comm = init();
  for (size_t count : {8u, 1004u, 1005u, 1007u, 1100u, 0u}) {
    errno = ENOTTY;
    const int result = all_reduce(comm, count);
    printf("%zu %d %d\n", count, result, errno);
  }
  errno = ENOTTY;
  printf("destroy %d", ncclCommDestroy(comm));
  printf(" %d\n", errno);
}

// One of everything the sequence rules speak of.
void sequences() {
  ncclComm_t comm = init();
  lockstep_step(3);
  lockstep_phase("backward");
  lockstep_sample_id("shard3:17");
  lockstep_comm_name(comm, "dp");
  all_reduce(comm, 10);    // 0
  all_reduce(comm, 1004);  // fails: gives 1 back
  all_reduce(comm, 0);     // takes none
  ncclBcast(buffer, 11, ncclInt8, 2, comm, stream);  // 1, once
  ncclGroupStart();
  all_reduce(comm, 12);  // 2
  ncclSend(buffer, 5, ncclInt8, 3, comm, stream);
  ncclGroupStart();
  ncclRecv(buffer, 5, ncclInt8, 3, comm, stream);
  ncclGroupEnd();
  ncclGroupEnd();
  ncclGroupStart();
  all_reduce(comm, 13);  // 3, given back
  ncclSend(buffer, 5, ncclInt8, 3, comm, stream);
  all_reduce(comm, 1005);
  ncclGroupEnd();
  all_reduce(comm, 14);  // 3
  ncclSend(buffer, 5, ncclInt8, 3, comm, stream);
  ncclSend(buffer, 5, ncclInt8, 2, comm, stream);
  ncclComm_t child = nullptr, none = comm;
  ncclCommSplit(comm, 7, 1, &child, nullptr);
  ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr);
  all_reduce(child, 15);
  ncclCommDestroy(child);
  ncclCommFinalize(comm);
  ncclCommDestroy(comm);
  ncclComm_t all[3];
  ncclCommInitAll(all, 3, nullptr);
  all_reduce(all[2], 16);
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t grouped[2] = {};
  ncclGroupStart();
  ncclCommInitRank(&grouped[0], 2, id, 0);
  ncclCommInitRank(&grouped[1], 2, id, 1);
  ncclGroupEnd();
  all_reduce(grouped[1], 17);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = "tp";
  ncclComm_t later = nullptr;
  ncclCommInitRankConfig(&later, 2, id, 0, &config);
  all_reduce(later, 18);
  ncclCommAbort(later);
}

void exceptions() {
  ncclComm_t comm = init();
  int caught = 0;
  struct Tidy {
    int& n;
    ~Tidy() { n++; }
  };
  int tidied = 0;
  for (int i = 0; i < 3; i++) try {
      const Tidy tidy{tidied};
      if (all_reduce(comm, 8) == ncclSuccess) throw std::runtime_error("after a hooked call");
    } catch (const std::exception&) {
      caught++;
    }
  printf("%d %d\n", caught, tidied);
}

void threads(int count) {
  ncclComm_t comm = init();
  for (int done = 0; done < count; done += 50) {
    std::vector<std::thread> some;
    for (int i = 0; i < 50; i++) some.emplace_back([=] { all_reduce(comm, static_cast<size_t>(done + i + 10) % 900 + 10); });
    for (std::thread& thread : some) thread.join();
  }
  printf("%d threads\n", count);
}

void forks() {
  ncclComm_t comm = init(0, 2);
  all_reduce(comm, 20);
  const pid_t silent = fork();
  if (silent == 0) {
    all_reduce(comm, 21);  // in the parent's communicator: not recorded, and not into the parent's file
    _exit(0);
  }
  waitpid(silent, nullptr, 0);
  const pid_t own = fork();
  if (own == 0) {
    ncclComm_t mine = init(1, 2);
    all_reduce(mine, 22);
    exit(5);
  }
  waitpid(own, nullptr, 0);
  all_reduce(comm, 23);
}

void communicators(int count) {
  ncclComm_t keep = init(2, 5);
  for (int i = 0; i < count; i++) {
    ncclComm_t comm = init(0, 3);
    all_reduce(comm, 9);
    ncclCommDestroy(comm);
  }
  all_reduce(keep, 10);
}

void quiet(const std::string& how) {
  ncclComm_t comm = init();
  all_reduce(comm, 10);
  fprintf(stderr, "ready\n");
  if (how == "sleep") pause();
  if (how == "spin")
    for (volatile uint64_t spins = 0; spins != UINT64_MAX;) spins = spins + 1;
  all_reduce(comm, how == "hang" ? 1200 : 1300);  // "spin-inside"
}

void burst(int count) {
  ncclComm_t comm = init();
  int sum = 0;
  for (int i = 0; i < count; i++) sum += all_reduce(comm, 8) + 1;
  printf("%d\n", sum);
}

void remove_folder() {
  ncclComm_t comm = init();
  int sum = all_reduce(comm, 8);
  const std::string command = "rm -rf '" + std::string(getenv("LOCKSTEP_DIR")) + "'";
  sum += system(command.c_str());
  for (int i = 0; i < 20000; i++) sum += all_reduce(comm, 8);  // the ring grows on, in a file without a name
  printf("%d\n", sum);
}

void fork_inside() {
  ncclComm_t comm = init();
  const pid_t parent = getpid();
  all_reduce(comm, 1500);
  if (getpid() != parent) {
    all_reduce(comm, 30);
    _exit(3);
  }
  all_reduce(comm, 31);
  int status = 0;
  wait(&status);
  printf("%d\n", WEXITSTATUS(status));
}

void close_and_open(const char* plugin) {
  for (int i = 0; i < 3; i++) {
    void* library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    printf("%d\n", reinterpret_cast<int (*)()>(dlsym(library, "use_nccl"))());
    dlclose(library);
  }
}

void signals(bool restart) {
  ncclComm_t comm = init();
  static int handled;
  struct sigaction action = {};
  action.sa_handler = [](int) { handled++; };
  action.sa_flags = restart ? SA_RESTART : 0;
  sigaction(SIGALRM, &action, nullptr);
  all_reduce(comm, 8);
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
  all_reduce(comm, 8);
  printf("%d handled, %d interrupted, %c\n", handled, interrupted, byte);
}

void share(int count) {
  ncclComm_t comm = init();
  for (int i = 0; i < 4; i++) all_reduce(comm, 8);  // alone at first
  std::vector<std::thread> some;
  for (int t = 0; t < count; t++)
    some.emplace_back([=] {
      for (int i = t ? 0 : 4; i < 20000; i++) all_reduce(comm, 8);
    });
  for (std::thread& thread : some) thread.join();
  printf("done\n");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? atoi(argv[2]) : 0;
  if (what == "results") results();
  if (what == "sequences") sequences();
  if (what == "exceptions") exceptions();
  if (what == "threads") threads(number);
  if (what == "forks") forks();
  if (what == "communicators") communicators(number);
  if (what == "quiet") quiet(argv[2]);
  if (what == "burst") burst(number);
  if (what == "remove-folder") remove_folder();
  if (what == "fork-inside") fork_inside();
  if (what == "exec") {
    init();
    execl("/proc/self/exe", argv[0], "results", static_cast<char*>(nullptr));
  }
  if (what == "dlclose") close_and_open(argv[2]);
  if (what == "signals") signals(argv[2][0] == 'r');
  if (what == "share") share(number);
  if (what == "init") init();
  if (what == "exit") init(), exit(number);
  if (what == "underscore-exit") init(), _exit(number);
  if (what == "Exit") init(), _Exit(number);
  if (what == "quick-exit") init(), quick_exit(number);
  if (what == "exit-inside") {  // from a signal handler, while a call is open
    ncclComm_t comm = init();
    static int status = number;
    signal(SIGALRM, [](int) { _exit(status); });
    alarm(1);
    all_reduce(comm, 1200);
  }
  if (what == "burst-slow") {  // as burst, and says whether a call took long
    ncclComm_t comm = init();
    int sum = 0, slow = 0;
    for (int i = 0; i < number; i++) {
      struct timespec before, after;
      clock_gettime(CLOCK_MONOTONIC, &before);
      sum += all_reduce(comm, 8) + 1;
      clock_gettime(CLOCK_MONOTONIC, &after);
      slow += (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 2500;
      if (i % 4096 == 4095) usleep(300000);  // a training computes, too
    }
    printf("%d %d\n", sum, slow);
  }
  if (what == "vfork") {
    init();
    const pid_t child = vfork();
    if (child == 0) _exit(number);
    int status = 0;
    waitpid(child, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
    fflush(stdout);
    raise(SIGKILL);
  }
  if (what == "signal") init(), raise(number);
  if (what == "abort") init(), abort();
  if (what == "fault") {
    init();
    *static_cast<volatile int*>(nullptr) = 1;
  }
  if (what == "call") all_reduce(init(), static_cast<size_t>(number));
  return 0;
}
