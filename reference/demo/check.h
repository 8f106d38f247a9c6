// SPDX-License-Identifier: MIT
//
// CUDA and NCCL calls whose failure ends the rank with a sentence.

#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>

namespace demo {

inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "lockstep-demo: %s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}
inline void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "lockstep-demo: %s: %s\n", call, ncclGetErrorString(result));
  std::exit(1);
}

}  // namespace demo

#define CHECK(call) ::demo::check((call), #call)
