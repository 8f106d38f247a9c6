// SPDX-License-Identifier: MIT
//
// The exported names, all from nccl_functions.def: pncclX, and ncclX as a weak alias of it, as in the real library, so
// that a tool may put itself in front of ncclX and still call pncclX.

#pragma GCC visibility push(default)
#include "interpose/abi/nccl.h"
#pragma GCC visibility pop

#include "reference/nccl/calls.h"

using lockstep::nccl::Fn;
using lockstep::nccl::Tag;

#define LOCKSTEP_EXPORT extern "C" __attribute__((visibility("default")))

#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...)                                                       \
  LOCKSTEP_EXPORT result pnccl##name LOCKSTEP_PARAMS(__VA_ARGS__) {                                                   \
    return static_cast<result>(lockstep::nccl::run(Tag<Fn::name> {} __VA_OPT__(, )                                    \
                                                       LOCKSTEP_LIST(LOCKSTEP_ARG_NAME __VA_OPT__(, ) __VA_ARGS__))); \
  }                                                                                                                   \
  LOCKSTEP_EXPORT __attribute__((weak, alias("pnccl" #name))) result nccl##name LOCKSTEP_PARAMS(__VA_ARGS__);

// Whatever the arguments are, they stay in their registers; these functions look at none.
#define LOCKSTEP_NCCL_DEVICE(since, name)                                                          \
  LOCKSTEP_EXPORT ncclResult_t pnccl##name() { return lockstep::nccl::refuse_device_call(#name); } \
  LOCKSTEP_EXPORT __attribute__((weak, alias("pnccl" #name))) ncclResult_t nccl##name();

#include "interpose/abi/nccl_functions.def"
