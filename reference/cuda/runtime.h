// SPDX-License-Identifier: MIT
//
// The CUDA runtime's functions as libcuda.so.1 implements them, under names of our own: libcudart.so.13 forwards to
// these, and so do the driver's cu* functions, whose error numbers are the same.

#pragma once

#include "cuda_runtime_api.h"

extern "C" {

#define LOCKSTEP_CUDART(name, params, args) \
  __attribute__((visibility("default"))) cudaError_t lockstep_host_##name params;
#include "reference/cuda/cudart_functions.def"

// A program tried to run device code. Says so once on stderr; every later call reports it, as CUDA does after a fault
// on the device, so that no program takes the missing result for a result.
__attribute__((visibility("default"))) cudaError_t lockstep_host_refuse_kernel(const char* how);

// cudaSuccess, or what went wrong for good in this process.
__attribute__((visibility("default"))) cudaError_t lockstep_host_sticky_error(void);
}
