/* SPDX-License-Identifier: MIT
 *
 * The part of the CUDA runtime's C interface that the host runtime has, for machines without a CUDA toolkit. It is the
 * real ABI's (CUDA 13), so a program compiled against the real headers runs on the host runtime, and one compiled
 * against these runs on a GPU. A test compares both where the real headers are present. Include <cuda_runtime.h> from
 * C++: it adds the typed overloads (cudaMalloc(&float_pointer, bytes)) that programs use.
 */
#ifndef LOCKSTEP_CUDA_RUNTIME_API_H
#define LOCKSTEP_CUDA_RUNTIME_API_H

#include "driver_types.h"

#define CUDART_VERSION 13000

#ifdef __cplusplus
#define LOCKSTEP_DEFAULT(value) = value
extern "C" {
#else
#define LOCKSTEP_DEFAULT(value)
#endif
#define LOCKSTEP_CUDA_API __attribute__((visibility("default")))

/* The functions stand in the list, with names for their parameters. A program that defines
 * CUDA_API_PER_THREAD_DEFAULT_STREAM calls the twins of those that take or mean a stream. */
#define LOCKSTEP_CUDART(name, params, args) LOCKSTEP_CUDA_API cudaError_t name params;
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define LOCKSTEP_CUDART_PTSZ(name, params, args) LOCKSTEP_CUDA_API cudaError_t name params __asm__(#name "_ptsz");
#define LOCKSTEP_CUDART_PTDS(name, params, args) LOCKSTEP_CUDA_API cudaError_t name params __asm__(#name "_ptds");
#endif
#include "cuda_functions.def"

LOCKSTEP_CUDA_API cudaError_t cudaGetLastError(void);
LOCKSTEP_CUDA_API cudaError_t cudaPeekAtLastError(void);
LOCKSTEP_CUDA_API const char* cudaGetErrorName(cudaError_t error);
LOCKSTEP_CUDA_API const char* cudaGetErrorString(cudaError_t error);

#ifdef __cplusplus
}
#endif
#undef LOCKSTEP_DEFAULT

#endif
