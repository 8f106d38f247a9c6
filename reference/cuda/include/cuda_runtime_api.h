/* SPDX-License-Identifier: MIT
 *
 * The part of the CUDA runtime's C interface that the host runtime has, for machines without a CUDA toolkit. Values and
 * layouts are the real ABI's (CUDA 13), so a program compiled against the real headers runs on the host runtime, and
 * one compiled against these runs on a GPU. A test compares both where the real headers are present. Include
 * <cuda_runtime.h> from C++: it adds the typed overloads (cudaMalloc(&float_pointer, bytes)) that programs use.
 */
#ifndef LOCKSTEP_CUDA_RUNTIME_API_H
#define LOCKSTEP_CUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

#define CUDART_VERSION 13000
#define CUDART_CB

#ifdef __cplusplus
#define LOCKSTEP_DEFAULT(value) = value
extern "C" {
#else
#define LOCKSTEP_DEFAULT(value)
#endif
#define LOCKSTEP_CUDA_API __attribute__((visibility("default")))

typedef enum cudaError {
#define LOCKSTEP_CUDA_ERROR(number, name, text) name = number,
#include "cuda_errors.def"
  cudaErrorApiFailureBase = 10000
} cudaError_t;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef void (*cudaHostFn_t)(void* userData);
typedef void (*cudaStreamCallback_t)(cudaStream_t stream, cudaError_t status, void* userData);

#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventInterprocess 0x04
#define cudaEventRecordDefault 0x00
#define cudaEventRecordExternal 0x01
#define cudaEventWaitDefault 0x00
#define cudaEventWaitExternal 0x01
#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaHostRegisterDefault 0x00
#define cudaMemAttachGlobal 0x01

struct cudaPointerAttributes {
  enum cudaMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
  long reserved[8];
};

/* Only what a host-side program asks for; the rest of the real 1008 bytes is zero. */
struct cudaDeviceProp {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned int luidDeviceNodeMask;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  size_t texturePitchAlignment;
  int multiProcessorCount;
  char lockstep_unused[180];
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  char lockstep_zero[428];
};

/* errors */
LOCKSTEP_CUDA_API cudaError_t cudaGetLastError(void);
LOCKSTEP_CUDA_API cudaError_t cudaPeekAtLastError(void);
LOCKSTEP_CUDA_API const char* cudaGetErrorName(cudaError_t error);
LOCKSTEP_CUDA_API const char* cudaGetErrorString(cudaError_t error);
LOCKSTEP_CUDA_API cudaError_t cudaRuntimeGetVersion(int* version);
LOCKSTEP_CUDA_API cudaError_t cudaDriverGetVersion(int* version);

/* devices */
LOCKSTEP_CUDA_API cudaError_t cudaGetDeviceCount(int* count);
LOCKSTEP_CUDA_API cudaError_t cudaSetDevice(int device);
LOCKSTEP_CUDA_API cudaError_t cudaGetDevice(int* device);
LOCKSTEP_CUDA_API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* prop, int device);
LOCKSTEP_CUDA_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
LOCKSTEP_CUDA_API cudaError_t cudaDeviceSynchronize(void);

/* memory */
LOCKSTEP_CUDA_API cudaError_t cudaMalloc(void** pointer, size_t bytes);
LOCKSTEP_CUDA_API cudaError_t cudaFree(void* pointer);
LOCKSTEP_CUDA_API cudaError_t cudaMallocHost(void** pointer, size_t bytes);
LOCKSTEP_CUDA_API cudaError_t cudaFreeHost(void* pointer);
LOCKSTEP_CUDA_API cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags);
LOCKSTEP_CUDA_API cudaError_t cudaMallocManaged(void** pointer, size_t bytes,
                                                unsigned int flags LOCKSTEP_DEFAULT(cudaMemAttachGlobal));
LOCKSTEP_CUDA_API cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream);
LOCKSTEP_CUDA_API cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream);
LOCKSTEP_CUDA_API cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int flags);
LOCKSTEP_CUDA_API cudaError_t cudaHostUnregister(void* pointer);
LOCKSTEP_CUDA_API cudaError_t cudaMemGetInfo(size_t* available, size_t* total);
LOCKSTEP_CUDA_API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* pointer);
LOCKSTEP_CUDA_API cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, enum cudaMemcpyKind kind);
LOCKSTEP_CUDA_API cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, enum cudaMemcpyKind kind,
                                              cudaStream_t stream LOCKSTEP_DEFAULT(0));
LOCKSTEP_CUDA_API cudaError_t cudaMemset(void* pointer, int value, size_t bytes);
LOCKSTEP_CUDA_API cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes,
                                              cudaStream_t stream LOCKSTEP_DEFAULT(0));

/* streams */
LOCKSTEP_CUDA_API cudaError_t cudaStreamCreate(cudaStream_t* stream);
LOCKSTEP_CUDA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags);
LOCKSTEP_CUDA_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority);
LOCKSTEP_CUDA_API cudaError_t cudaStreamDestroy(cudaStream_t stream);
LOCKSTEP_CUDA_API cudaError_t cudaStreamSynchronize(cudaStream_t stream);
LOCKSTEP_CUDA_API cudaError_t cudaStreamQuery(cudaStream_t stream);
LOCKSTEP_CUDA_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                                  unsigned int flags LOCKSTEP_DEFAULT(0));
LOCKSTEP_CUDA_API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* userData,
                                                    unsigned int flags);
LOCKSTEP_CUDA_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData);

/* events */
LOCKSTEP_CUDA_API cudaError_t cudaEventCreate(cudaEvent_t* event);
LOCKSTEP_CUDA_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
LOCKSTEP_CUDA_API cudaError_t cudaEventDestroy(cudaEvent_t event);
LOCKSTEP_CUDA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream LOCKSTEP_DEFAULT(0));
LOCKSTEP_CUDA_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags);
LOCKSTEP_CUDA_API cudaError_t cudaEventQuery(cudaEvent_t event);
LOCKSTEP_CUDA_API cudaError_t cudaEventSynchronize(cudaEvent_t event);
LOCKSTEP_CUDA_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

#ifdef __cplusplus
}
#endif

#endif
