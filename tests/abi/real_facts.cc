// SPDX-License-Identifier: MIT
//
// The same facts from the real nccl.h, and every prototype of the real header compared with our list at compile time.

// NCCL 2.30 shows ncclResetDebugInit only where its own build says which system it is on.
#define NCCL_OS_LINUX 1
#include <nccl.h>

#include <type_traits>

#include "probe.inc"

#define LOCKSTEP_SAME(name, result, ...)                                                             \
  static_assert(std::is_same_v<decltype(&nccl##name), result (*)(__VA_ARGS__)>, "nccl" #name);       \
  static_assert(std::is_same_v<decltype(&pnccl##name), result (*)(__VA_ARGS__)>, "pnccl" #name);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include "real_prototypes.inc"

Facts real_facts() { return collect_facts(); }
int real_version() { return NCCL_VERSION_CODE; }
