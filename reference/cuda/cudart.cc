// SPDX-License-Identifier: MIT
//
// libcudart.so.13: forwards every call to libcuda.so.1 and keeps each thread's last error. It holds nothing else, so a
// program may load several copies of it.

#include <cstdio>

#include "cuda_runtime.h"
#include "reference/cuda/runtime.h"

#define LOCKSTEP_EXPORT __attribute__((visibility("default")))

namespace {

thread_local cudaError_t t_last = cudaSuccess;

// What is wrong with the process goes before what is wrong with the arguments.
cudaError_t note(cudaError_t error) {
  if (error == cudaSuccess) return error;
  if (const cudaError_t sticky = lockstep_host_sticky_error()) error = sticky;
  t_last = error;
  return error;
}

// An error of the whole process is not cleared by being read.
cudaError_t last_error() {
  if (const cudaError_t sticky = lockstep_host_sticky_error()) return sticky;
  if (const cudaError_t refused = lockstep_host_refused()) return refused;
  return t_last;
}

// The twins of functions that take a stream, or mean the default one: for them null is the thread's own.
class PerThread {
 public:
  PerThread() : before_(lockstep_host_null_is_per_thread(true)) {}
  ~PerThread() { lockstep_host_null_is_per_thread(before_); }
  PerThread(const PerThread&) = delete;
  PerThread& operator=(const PerThread&) = delete;

 private:
  const bool before_;
};

}  // namespace

extern "C" {

#define LOCKSTEP_CUDART(name, params, args) \
  cudaError_t name params { return note(lockstep_host_##name args); }
#define LOCKSTEP_TWIN(name, twin, params, args)                       \
  cudaError_t name params { return note(lockstep_host_##name args); } \
  LOCKSTEP_EXPORT cudaError_t twin params {                           \
    const PerThread scope;                                            \
    return note(lockstep_host_##name args);                           \
  }
#define LOCKSTEP_CUDART_PTSZ(name, params, args) LOCKSTEP_TWIN(name, name##_ptsz, params, args)
#define LOCKSTEP_CUDART_PTDS(name, params, args) LOCKSTEP_TWIN(name, name##_ptds, params, args)
// Whatever the arguments of these are, they stay where the caller put them.
#define LOCKSTEP_CUDART_KERNEL(name) \
  LOCKSTEP_EXPORT cudaError_t name() { return note(lockstep_host_refuse_kernel(#name)); }
#define LOCKSTEP_CUDART_ABSENT(name) \
  LOCKSTEP_EXPORT cudaError_t name() { return note(lockstep_host_refuse_function(#name)); }
#include "cuda_functions.def"

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

// Plain arithmetic: bits per component and what they mean.
struct ChannelFormat {
  int x, y, z, w;
  int kind;
};
LOCKSTEP_EXPORT ChannelFormat cudaCreateChannelDesc(int x, int y, int z, int w, int kind) { return {x, y, z, w, kind}; }

// What nvcc makes programs call as they start: registering device code succeeds, so that such a program may use
// everything but kernels.
LOCKSTEP_EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
LOCKSTEP_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
LOCKSTEP_EXPORT void __cudaUnregisterFatBinary(void**) {}
LOCKSTEP_EXPORT void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*,
                                            int*) {}
LOCKSTEP_EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
LOCKSTEP_EXPORT void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}
LOCKSTEP_EXPORT void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}
LOCKSTEP_EXPORT void __cudaRegisterUnifiedTable(void**, void*) {}
LOCKSTEP_EXPORT char __cudaInitModule(void**) { return 0; }
// On the way to a launch; the launch says what is wrong.
LOCKSTEP_EXPORT cudaError_t __cudaGetKernel(void** kernel, const void* entry) {
  *kernel = const_cast<void*>(entry);
  return cudaSuccess;
}
LOCKSTEP_EXPORT unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) { return 0; }
LOCKSTEP_EXPORT cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) {
  return note(lockstep_host_refuse_kernel("a kernel launch (<<<...>>>)"));
}

}  // extern "C"
