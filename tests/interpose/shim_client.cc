// SPDX-License-Identifier: MIT
//
// A program that uses NCCL in the way its first argument names, for tests of the shim. It prints what it saw, so that a
// run with the shim can be compared with one without it.

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "lockstep.h"
#include "tests/interpose/client_parts.h"

using namespace lockstep;

extern "C" int ncclDevCommCreate(ncclComm_t, const void*, void*);

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
  all_reduce(comm, 10);                              // 0
  all_reduce(comm, 1004);                            // fails: gives 1 back
  all_reduce(comm, 0);                               // takes none
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

// Configurations as NCCL 2.14 to newer ones than ours have them, each at the end of a page with nothing behind it.
void configs() {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* space = static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(space + page, page, PROT_NONE);
  ncclConfig_t full = NCCL_CONFIG_INITIALIZER;
  full.blocking = 1, full.cgaClusterSize = 2, full.minCTAs = 3, full.maxCTAs = 4, full.netName = "socket",
  full.splitShare = 5;
  full.trafficClass = 6, full.commName = "named", full.collnetEnable = 7, full.CTAPolicy = 8, full.shrinkShare = 9;
  const auto make = [&](size_t size, unsigned version, unsigned magic = NCCL_API_MAGIC) {
    full.size = size, full.version = version, full.magic = magic;
    const size_t here = size < sizeof full ? size : sizeof full;
    char* at = space + page - here;
    memcpy(at, &full, here);
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclComm_t comm = nullptr;
    printf("%d\n", ncclCommInitRankConfig(&comm, 2, id, 0, reinterpret_cast<ncclConfig_t*>(at)));
  };
  make(24, NCCL_VERSION(2, 14, 3));  // where the cluster size is now there was padding
  make(40, NCCL_VERSION(2, 17, 1));
  make(48, NCCL_VERSION(2, 18, 1));  // and here for the traffic class
  make(48, NCCL_VERSION(2, 26, 2));
  make(72, NCCL_VERSION(2, 27, 3));
  make(sizeof full + 64, NCCL_VERSION(2, 99, 0));
  make(8, NCCL_VERSION(2, 28, 3));
  make(72, NCCL_VERSION(2, 28, 3), 1);
}

// One id for communicators that come one after the other, as with a fixed NCCL_COMM_ID.
void generations() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  for (int i = 0; i < 3; i++) {
    ncclComm_t comm = nullptr, peer = nullptr, child = nullptr;
    ncclCommInitRank(&comm, 2, id, 0);
    ncclCommInitRank(&peer, 2, id, 1);
    ncclCommSplit(comm, 0, 0, &child, nullptr);
    all_reduce(child, 10);
    for (ncclComm_t each : {child, peer, comm}) ncclCommDestroy(each);
  }
}

// What NCCL does from here on without calls.
void blind() {
  ncclComm_t seeing = init(0, 3), windows = init(1, 3), device = init(2, 3);
  ncclWindow_t window = nullptr;
  char requirements[64], made[64];
  printf("%d", ncclCommWindowRegister(windows, buffer, 0, &window, NCCL_WIN_COLL_SYMMETRIC));
  printf("%d", ncclDevCommCreate(device, nullptr, made));
  all_reduce(seeing, 20);  // neither has happened yet
  for (int i = 0; i < 2; i++) {
    printf("%d", ncclCommWindowRegister(windows, buffer, sizeof buffer, &window, NCCL_WIN_COLL_SYMMETRIC));
    printf("%d", ncclDevCommCreate(device, requirements, made));
  }
  all_reduce(seeing, 21);
  printf("\n");
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
  if (what == "configs") configs();
  if (what == "generations") generations();
  if (what == "blind") blind();
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
