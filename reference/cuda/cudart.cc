// SPDX-License-Identifier: MIT
//
// libcudart.so.13: forwards every call to libcuda.so.1 and keeps each thread's last error.

#include <cstdio>

#include "cuda_runtime.h"
#include "reference/cuda/runtime.h"

namespace {

thread_local cudaError_t t_last = cudaSuccess;

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) t_last = error;
  return error;
}

// An error of the whole process is not cleared by being read.
cudaError_t last_error() {
  const cudaError_t sticky = lockstep_host_sticky_error();
  return sticky != cudaSuccess ? sticky : t_last;
}

}  // namespace

extern "C" {

#define LOCKSTEP_CUDART(name, params, args) \
  cudaError_t name params { return note(lockstep_host_##name args); }
#include "reference/cuda/cudart_functions.def"

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error();
  t_last = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error(); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (static_cast<int>(error)) {
#define LOCKSTEP_CUDA_ERROR(number, name, text) \
  case number:                                  \
    return #name;
#include "cuda_errors.def"
    default:
      return "unrecognized error code";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (static_cast<int>(error)) {
#define LOCKSTEP_CUDA_ERROR(number, name, text) \
  case number:                                  \
    return text;
#include "cuda_errors.def"
    default:
      return "unrecognized error code";
  }
}

// --- what nvcc makes host objects call
// ----------------------------------------------------------------------------------- Registering device code succeeds,
// so that such a program starts and may use everything but kernels; launching does not.

#define LOCKSTEP_NVCC __attribute__((visibility("default")))

LOCKSTEP_NVCC cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return note(lockstep_host_refuse_kernel("cudaLaunchKernel"));
}
LOCKSTEP_NVCC cudaError_t __cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return note(lockstep_host_refuse_kernel("__cudaLaunchKernel"));
}
LOCKSTEP_NVCC cudaError_t cudaLaunchKernelExC(const void*, const void*, void**) {
  return note(lockstep_host_refuse_kernel("cudaLaunchKernelExC"));
}
LOCKSTEP_NVCC cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return note(lockstep_host_refuse_kernel("cudaLaunchCooperativeKernel"));
}

LOCKSTEP_NVCC void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
LOCKSTEP_NVCC void __cudaRegisterFatBinaryEnd(void**) {}
LOCKSTEP_NVCC void __cudaUnregisterFatBinary(void**) {}
LOCKSTEP_NVCC void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*,
                                          int*) {}
LOCKSTEP_NVCC void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
LOCKSTEP_NVCC char __cudaInitModule(void**) { return 0; }
LOCKSTEP_NVCC unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) { return 0; }
LOCKSTEP_NVCC cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) {
  return note(lockstep_host_refuse_kernel("a kernel launch (<<<...>>>)"));
}

}  // extern "C"
