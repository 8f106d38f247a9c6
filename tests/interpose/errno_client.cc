// SPDX-License-Identifier: MIT
//
// Calls every function the shim hooks, each in all situations a hook tells apart, with an errno of its own before, and
// looks at errno after: it must be that one, or the one NCCL set. Prints each call where it is not, and how many calls
// it made.

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <thread>
#include <type_traits>

#include "interpose/abi/foreach.h"
#include "interpose/abi/functions.h"
#include "interpose/abi/nccl.h"
#include "lockstep.h"

extern "C" {
void listed_nccl_set(int error, int answer);
int ncclDevCommCreate(ncclComm_t, const void*, void*);
void fake_cuda_release(uint64_t);
void fake_cuda_capture(int);
}

namespace {

using lockstep::abi::ArgRole;
using lockstep::abi::FunctionKind;

constexpr int kBefore = ENOTTY, kSet = EDOM, kFails = ncclInternalError;
char memory[4096];
thread_local ncclComm_t comm;
int calls, wrong;

struct Situation {
  const char* name;
  int set;     // errno that NCCL sets; 0 = leaves it alone
  int answer;  // of NCCL
};

template <class Call>
int checked(const char* function, const Situation& situation, Call call) {
  listed_nccl_set(situation.set, situation.answer);
  errno = kBefore;
  const int result = call();
  const int after = errno;
  listed_nccl_set(0, 0);
  calls++;
  if (after == (situation.set ? situation.set : kBefore) && result == situation.answer) return result;
  wrong++;
  printf("%s, %s: result %d, errno %d\n", function, situation.name, result, after);
  return result;
}

void renew_comm() {
  ncclUniqueId id = {};
  ncclCommInitRank(&comm, 2, id, 0);
}

ncclComm_t made[4];
ncclUniqueId id_of_one;

// What an argument of this role may be, so that the shim finds nothing strange.
template <ArgRole role, class T>
T argument() {
  if constexpr (role == ArgRole::comm)
    return comm;
  else if constexpr (role == ArgRole::new_comm || role == ArgRole::new_comms)
    return made;
  else if constexpr (role == ArgRole::nranks)
    return 2;
  else if constexpr (role == ArgRole::count || role == ArgRole::bytes)
    return 16;
  else if constexpr (role == ArgRole::unique_ids)
    return &id_of_one;
  else if constexpr (role == ArgRole::config)
    return nullptr;
  else if constexpr (role == ArgRole::stream)
    return reinterpret_cast<T>(0x77);
  else if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<T>(memory);
  else
    return T{};
}

#define ARGUMENT(triple) argument<ArgRole::LOCKSTEP_ARG_ROLE(triple), std::remove_cv_t<LOCKSTEP_ARG_TYPE(triple)>>()

template <FunctionKind kind, class Call>
void call_one(const char* name, const Situation& situation, bool twice, Call call) {
  constexpr bool group = kind == FunctionKind::group_start || kind == FunctionKind::group_end;
  if constexpr (kind == FunctionKind::group_end) ncclGroupStart();
  for (int i = 0; i <= (twice && !group); i++) {
    checked(name, situation, call);
    if (kind == FunctionKind::teardown) renew_comm();
  }
  if (kind == FunctionKind::group_start && situation.answer == 0) ncclGroupEnd();
}

#define CALL_untouched(kind, name, ...)
#define CALL_hooked(kind, name, ...)                                                         \
  call_one<FunctionKind::kind>(#name, situation, twice, [] {                                 \
    return static_cast<int>(nccl##name(LOCKSTEP_LIST(ARGUMENT __VA_OPT__(, ) __VA_ARGS__))); \
  });

// Twice: the first time a stack, a thread or a communicator may be new, the second time nothing is.
void call_all(const Situation& situation, bool twice = true) {
#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...) CALL_##hook(kind, name __VA_OPT__(, ) __VA_ARGS__)
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "interpose/abi/nccl_functions.def"
  checked("DevCommCreate", situation, [] { return ncclDevCommCreate(comm, memory, memory); });
}

// Groups of every function that may be in one: their operations and communicators come to be at the end.
void call_in_groups(const Situation& situation) {
  ncclGroupStart();
  call_all(situation, false);
  checked("GroupEnd of many", situation, [] { return static_cast<int>(ncclGroupEnd()); });
}

void in_a_fresh_thread(const Situation& situation, FunctionKind wanted) {
#define CALL_untouched_thread(kind, name, ...)
#define CALL_hooked_thread(kind, name, ...)              \
  if (FunctionKind::kind == wanted)                      \
    std::thread([&, mine = comm] {                       \
      comm = mine;                                       \
      CALL_hooked(kind, name __VA_OPT__(, ) __VA_ARGS__) \
    }).join();
  const bool twice = false;
#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...) \
  CALL_##hook##_thread(kind, name __VA_OPT__(, ) __VA_ARGS__)
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "interpose/abi/nccl_functions.def"
}

// On communicators whose making the shim has not seen.
void call_on_strangers() {
  const Situation stranger = {"on a stranger", 0, 0};
  for (uint64_t i = 1; i <= 4; i++) {
    comm = reinterpret_cast<ncclComm_t>(0x999000 + 0x100 * i);
    if (i == 1)
      checked("AllGather", stranger,
              [] { return static_cast<int>(ncclAllGather(memory, memory, 16, ncclInt8, comm, nullptr)); });
    if (i == 2)
      checked("Send", stranger, [] { return static_cast<int>(ncclSend(memory, 16, ncclInt8, 1, comm, nullptr)); });
    if (i == 3) checked("CommDeregister", stranger, [] { return static_cast<int>(ncclCommDeregister(comm, memory)); });
    if (i == 4) checked("CommDestroy", stranger, [] { return static_cast<int>(ncclCommDestroy(comm)); });
  }
  renew_comm();
}

// Enough operations for the ring to grow, and for a disk to be full or slow.
void call_many(int count) {
  const Situation plain = {"many", 0, 0};
  for (int i = 0; i < count; i++)
    checked("AllReduce", plain, [] {
      return static_cast<int>(
          ncclAllReduce(memory, memory, 16, ncclInt8, ncclSum, comm, reinterpret_cast<cudaStream_t>(0x77)));
    });
}

}  // namespace

int main(int argc, char** argv) {
  const int many = argc > 1 ? atoi(argv[1]) : 0;
  fake_cuda_release(UINT64_MAX);
  ncclUniqueId id;
  const Situation plain = {"first", 0, 0};
  checked("GetUniqueId", plain, [&] { return static_cast<int>(ncclGetUniqueId(&id)); });
  checked("CommInitRank", plain, [&] { return static_cast<int>(ncclCommInitRank(&comm, 2, id, 0)); });
  for (const Situation& situation : {Situation{"succeeds", 0, 0}, Situation{"sets errno", kSet, 0},
                                     Situation{"fails", 0, kFails}, Situation{"fails and sets errno", kSet, kFails}}) {
    call_all(situation);
    call_in_groups(situation);
    in_a_fresh_thread(situation, FunctionKind::collective);
    in_a_fresh_thread(situation, FunctionKind::p2p);
    fake_cuda_capture(1);
    call_all(situation, false);
    fake_cuda_capture(0);
  }
  checked("lockstep_step", plain, [] { return lockstep_step(3), 0; });
  checked("lockstep_phase", plain, [] { return lockstep_phase("forward"), 0; });
  checked("lockstep_sample_id", plain, [] { return lockstep_sample_id("shard:1"), 0; });
  call_on_strangers();
  call_many(many);
  printf("%d calls, %d wrong\n", calls, wrong);
  return 0;
}
