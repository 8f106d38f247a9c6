// SPDX-License-Identifier: MIT
//
// A libcudart.so.13 of a few functions under the version node of the real one, which calls the driver as the real one does.
// Each sets errno, so that a test sees whether a hook kept it.

#include <errno.h>
#include <stddef.h>
#include <string.h>

extern "C" {
int cuStreamSynchronize(void*);
int cuEventSynchronize(void*);
int cuCtxSynchronize();
int cuEventCreate(void**, unsigned);
int cuEventRecord(void*, void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuGraphLaunch(void*, void*);
}

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
int with_errno(int result) {
  errno = EDOM;
  return result;
}
}  // namespace

EXPORT int cudaStreamSynchronize(void* stream) { return with_errno(cuStreamSynchronize(stream)); }
EXPORT int cudaStreamSynchronize_ptsz(void* stream) { return with_errno(cuStreamSynchronize(stream)); }
EXPORT int cudaEventSynchronize(void* event) { return with_errno(cuEventSynchronize(event)); }
EXPORT int cudaDeviceSynchronize() { return with_errno(cuCtxSynchronize()); }
EXPORT int cudaEventCreate(void** event) { return with_errno(cuEventCreate(event, 0)); }
EXPORT int cudaEventRecord(void* event, void* stream) { return with_errno(cuEventRecord(event, stream)); }
EXPORT int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return with_errno(cuStreamWaitEvent(stream, event, flags));
}
EXPORT int cudaGraphLaunch(void* graph, void* stream) { return with_errno(cuGraphLaunch(graph, stream)); }
EXPORT int cudaMemcpy(void* to, const void* from, size_t size, int kind) {
  if (kind > 4) return with_errno(21);
  memcpy(to, from, size);
  return with_errno(0);
}
