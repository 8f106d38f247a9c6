// SPDX-License-Identifier: MIT
//
// Stands for the libraries that an RPATH leads to: every call that linked_client makes fails with a number of its own.

#define DECOY(name) \
  extern "C" __attribute__((visibility("default"))) int name() { return 77; }
#ifdef DECOY_CUDART
DECOY(cudaGetDeviceCount)
DECOY(cudaSetDevice)
DECOY(cudaStreamCreate)
DECOY(cudaMalloc)
DECOY(cudaMemcpy)
DECOY(cudaStreamSynchronize)
#else
DECOY(ncclCommInitAll)
DECOY(ncclGroupStart)
DECOY(ncclAllReduce)
DECOY(ncclGroupEnd)
DECOY(ncclCommDestroy)
#endif
