// SPDX-License-Identifier: MIT
//
// The CUDA runtime's functions as libcuda.so.1 implements them, under names of our own: libcudart.so.13 forwards to
// these, and so do the driver's cu* functions, whose error numbers are the same.

#pragma once

#include "cuda_runtime_api.h"

// Default arguments stand in the header's declarations.
#define LOCKSTEP_DEFAULT(value)

extern "C" {

#define LOCKSTEP_CUDART(name, params, args) \
  __attribute__((visibility("default"))) cudaError_t lockstep_host_##name params;
#include "cuda_functions.def"

// A program tried to run device code. Says so once on stderr; every later call reports it, as CUDA does after a fault
// on the device, so that no program takes the missing result for a result.
__attribute__((visibility("default"))) cudaError_t lockstep_host_refuse_kernel(const char* how);

// Work that the device was given touches no memory. Says so once on stderr (`what` names the work and the address);
// every later call reports it.
__attribute__((visibility("default"))) void lockstep_host_illegal_address(const char* what);

// A program called what the host runtime lacks. Says so on stderr, once per function; from then on cudaGetLastError
// reports it whatever is called in between, so that no program that checks for errors now and then misses it.
__attribute__((visibility("default"))) cudaError_t lockstep_host_refuse_function(const char* name);
__attribute__((visibility("default"))) cudaError_t lockstep_host_refused(void);

// cudaSuccess, or what went wrong for good in this process.
__attribute__((visibility("default"))) cudaError_t lockstep_host_sticky_error(void);

// Whether the null stream means the calling thread's own default stream. Returns what was so before.
__attribute__((visibility("default"))) bool lockstep_host_null_is_per_thread(bool yes);
}
