// SPDX-License-Identifier: MIT
//
// A program that uses NCCL in the way its first argument names, for tests of the shim. It prints what it saw, so that a
// run with the shim can be compared with one without it.

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "lockstep.h"
#include "tests/interpose/client_parts.h"

using namespace lockstep;

namespace {

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

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? atoi(argv[2]) : 0;
  if (what == "results") results();
  if (what == "sequences") sequences();
  if (what == "exceptions") exceptions();
  if (what == "quiet") quiet(argv[2]);
  if (what == "burst") burst(number);
  if (what == "exec") {
    init();
    execl("/proc/self/exe", argv[0], "results", static_cast<char*>(nullptr));
  }
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
