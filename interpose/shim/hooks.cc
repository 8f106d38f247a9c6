// SPDX-License-Identifier: MIT
//
// Every hook, made from the one list. A hook reads its arguments by role, records the begin, runs the true function,
// records the end, and gives back exactly what that function gave: result, errno, and nothing else touched.

#include "interpose/shim/libc.h"

#include <errno.h>

#include <type_traits>

#include "interpose/abi/foreach.h"
#include "interpose/abi/functions.h"
#include "interpose/abi/nccl.h"
#include "interpose/shim/calls.h"
#include "interpose/shim/comms.h"
#include "interpose/shim/copies.h"
#include "interpose/shim/lifecycle.h"
#include "interpose/shim/operation.h"
#include "interpose/shim/real.h"

namespace lockstep::shim {
namespace {

template <class T>
uint64_t bits(T value) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<uint64_t>(value);
  else
    return static_cast<uint64_t>(value);
}

template <abi::ArgRole role, class T>
inline void take(CallArgs& args, const T& value) {
  using R = abi::ArgRole;
  if constexpr (role == R::send_buffer) args.sendbuff = bits(value);
  if constexpr (role == R::recv_buffer) args.recvbuff = bits(value);
  if constexpr (role == R::count || role == R::bytes) args.count = bits(value);
  if constexpr (role == R::dtype) args.dtype = value;
  if constexpr (role == R::redop) args.redop = value;
  if constexpr (role == R::root || role == R::peer) args.peer = value;
  if constexpr (role == R::comm) args.comm = bits(value);
  if constexpr (role == R::stream) args.stream = bits(value);
  if constexpr (role == R::new_comm || role == R::new_comms) args.new_comm = value;
  if constexpr (role == R::nranks) args.nranks = value;
  if constexpr (role == R::rank) args.rank = value;
  if constexpr (role == R::unique_id) args.unique_id = &value;
  if constexpr (role == R::unique_ids) args.unique_id = value;
  if constexpr (role == R::config) args.config = value;
  if constexpr (role == R::color) args.color = value;
  if constexpr (role == R::key) args.key = value;
  if constexpr (role == R::out) args.out = value;
}

ncclResult_t without_real(abi::Fn fn) {
  say_missing(fn);
  if (recording()) recorder.trace.status->calls_unhooked.fetch_add(1, std::memory_order_relaxed);
  return ncclInvalidUsage;
}

}  // namespace
}  // namespace lockstep::shim

#define LOCKSTEP_TAKE(triple) take<ArgRole::LOCKSTEP_ARG_ROLE(triple)>(args, LOCKSTEP_ARG_NAME(triple));

// NCCL's own nested calls go to the copy they come from, whichever hook the loader gave them.
#define LOCKSTEP_BODY(which, kind, result, name, ...)                                               \
  using namespace lockstep::shim;                                                                  \
  using lockstep::abi::ArgRole;                                                                    \
  constexpr auto fn = lockstep::abi::Fn::name;                                                     \
  constexpr auto function_kind = lockstep::abi::FunctionKind::kind;                                \
  using Function = result(*) LOCKSTEP_PARAMS(__VA_ARGS__);                                         \
  static_assert(std::is_same_v<result, ncclResult_t>);                                             \
  if constexpr (enqueues(function_kind)) {                                                         \
    ThreadState& thread = this_thread;                                                             \
    CallArgs args;                                                                                 \
    LOCKSTEP_EACH(LOCKSTEP_TAKE __VA_OPT__(, ) __VA_ARGS__)                                        \
    args.copy = which;                                                                             \
    const auto real = reinterpret_cast<Function>(known_function(which, fn));                        \
    if (__builtin_expect(real && is_outside(__builtin_return_address(0)) &&                        \
                         is_plain(thread, function_kind, args), 1)) {                              \
      Call call;                                                                                   \
      begin_operation<true>(call, thread, fn, function_kind, args);                                \
      const ncclResult_t given = real LOCKSTEP_ARGS(__VA_ARGS__);                                  \
      if (__builtin_expect(call.epoch != recorder.epoch.load(std::memory_order_relaxed), 0)) return given; \
      end_operation<true>(call, thread, fn, function_kind, args, given);                           \
      return given;                                                                                \
    }                                                                                              \
  }                                                                                                \
  const unsigned caller = copy_around(__builtin_return_address(0));                                \
  const auto real = real_as<Function>(caller == kCopies ? which : caller, fn);                      \
  if (__builtin_expect(!real, 0)) return without_real(fn);                                         \
  CallArgs args;                                                                                   \
  LOCKSTEP_EACH(LOCKSTEP_TAKE __VA_OPT__(, ) __VA_ARGS__)                                          \
  args.copy = which;                                                                               \
  if (caller != kCopies || passes_unrecorded()) {                                                  \
    const ncclResult_t given = real LOCKSTEP_ARGS(__VA_ARGS__);                                    \
    if (fn == lockstep::abi::Fn::GetUniqueId && given == ncclSuccess) note_unique_id(args.out);    \
    return given;                                                                                  \
  }                                                                                                \
  int& error = errno;                                                                              \
  int kept = error;                                                                                \
  Call call;                                                                                       \
  begin_call(call, fn, function_kind, args);                                                       \
  error = kept;                                                                                    \
  const ncclResult_t given = real LOCKSTEP_ARGS(__VA_ARGS__);                                      \
  kept = error;                                                                                    \
  end_call(call, fn, function_kind, args, given);                                                  \
  error = kept;                                                                                    \
  return given;

#define LOCKSTEP_HOOK_untouched(kind, result, name, ...)
#define LOCKSTEP_HOOK_hooked(kind, result, name, ...)                                                \
  extern "C" __attribute__((visibility("default"))) result nccl##name LOCKSTEP_PARAMS(__VA_ARGS__) { \
    LOCKSTEP_BODY(0u, kind, result, name __VA_OPT__(, ) __VA_ARGS__)                                 \
  }                                                                                                  \
  namespace {                                                                                        \
  template <unsigned number>                                                                         \
  result copied_##name LOCKSTEP_PARAMS(__VA_ARGS__) {                                                \
    LOCKSTEP_BODY(number, kind, result, name __VA_OPT__(, ) __VA_ARGS__)                             \
  }                                                                                                  \
  }

#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...) \
  LOCKSTEP_HOOK_##hook(kind, result, name __VA_OPT__(, ) __VA_ARGS__)
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "interpose/abi/nccl_functions.def"

namespace lockstep::shim {
namespace {

#define LOCKSTEP_HOOK_untouched_set(name)
#define LOCKSTEP_HOOK_hooked_set(name)                                                                     \
  void* const hooks_of_##name[kHookedCopies] = {                                                                 \
      reinterpret_cast<void*>(&::nccl##name), reinterpret_cast<void*>(&copied_##name<1>),                  \
      reinterpret_cast<void*>(&copied_##name<2>), reinterpret_cast<void*>(&copied_##name<3>)};
#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...) LOCKSTEP_HOOK_##hook##_set(name)
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "interpose/abi/nccl_functions.def"

struct HookSet {
  abi::Fn fn;
  void* const* hooks;
};
#define LOCKSTEP_HOOK_untouched_row(name)
#define LOCKSTEP_HOOK_hooked_row(name) {abi::Fn::name, hooks_of_##name},
const HookSet hook_sets[] = {
#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...) LOCKSTEP_HOOK_##hook##_row(name)
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "interpose/abi/nccl_functions.def"
};

}  // namespace

void* hook_for(abi::Fn fn, void* found) {
  const unsigned copy = copy_of(found);
  if (copy >= kHookedCopies) return nullptr;
  for (const HookSet& set : hook_sets) {
    if (set.fn != fn) continue;
    real_functions[copy][static_cast<unsigned>(fn)].store(found, std::memory_order_release);
    return set.hooks[copy];
  }
  return nullptr;
}

}  // namespace lockstep::shim

// The host side of NCCL's device API. Its structs change from version to version, but all its arguments are pointers:
// they are handed on unseen. What its kernels do from here on no call will show.
extern "C" __attribute__((visibility("default"))) int ncclDevCommCreate(ncclComm_t comm, const void* requirements,
                                                                        void* out) {
  using namespace lockstep::shim;
  using Function = int (*)(ncclComm_t, const void*, void*);
  const auto real = reinterpret_cast<Function>(find_named("ncclDevCommCreate"));
  if (!real) return ncclInvalidUsage;
  const int given = real(comm, requirements, out);
  const int kept = errno;
  if (given == ncclSuccess && recording() && !passes_unrecorded() &&
      !called_by_nccl(__builtin_return_address(0)))
    go_blind(find_comm(reinterpret_cast<uint64_t>(comm), known_thread()), lockstep::trace::kBlindDeviceApi,
             "ncclDevCommCreate");
  errno = kept;
  return given;
}
