// SPDX-License-Identifier: MIT
//
// See driver.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/driver.h"

#include <dlfcn.h>
#include <errno.h>

#include <atomic>

#include "interpose/shim/real.h"
#include "interpose/shim/recorder.h"

namespace lockstep::shim {

constinit const Driver* driver = nullptr;

namespace {

Driver table;
std::atomic<uint32_t> looking;

template <class F>
bool look_up(void* library, F& to, const char* name) {
  to = reinterpret_cast<F>(find_symbol(library, name));
  return to != nullptr;
}

bool fill(void* library) {
  look_up(library, table.stream_context, "cuStreamGetCtx");
  look_up(library, table.context_device, "cuCtxGetDevice");
  look_up(library, table.pointer_attribute, "cuPointerGetAttribute");
  if (!look_up(library, table.launch_host, "cuLaunchHostFunc"))
    if (void* runtime = dlopen("libcudart.so.13", RTLD_NOLOAD | RTLD_LAZY))
      look_up(runtime, table.launch_host, "cudaLaunchHostFunc");
  return look_up(library, table.stream_is_capturing, "cuStreamIsCapturing") &&
         look_up(library, table.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode") &&
         look_up(library, table.context_get, "cuCtxGetCurrent") &&
         look_up(library, table.context_set, "cuCtxSetCurrent") &&
         look_up(library, table.event_create, "cuEventCreate") &&
         look_up(library, table.event_record, "cuEventRecord") && look_up(library, table.event_query, "cuEventQuery");
}

}  // namespace

void find_driver() {
  if (looking.exchange(1, std::memory_order_acquire)) return;
  const int saved = errno;
  trace::StatesKnown known = trace::StatesKnown::no_driver;
  if (__atomic_load_n(&driver, __ATOMIC_RELAXED)) {
    known = trace::StatesKnown::watched;
  } else if (void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY)) {
    // The handle is kept, so that what we call stays mapped.
    const bool usable = fill(library);
    if (usable) __atomic_store_n(&driver, &table, __ATOMIC_RELEASE);
    known = usable ? trace::StatesKnown::watched : trace::StatesKnown::failed;
  }
  if (!recorder.config.states) known = trace::StatesKnown::switched_off;
  recorder.trace.status->states.store(static_cast<uint32_t>(known), std::memory_order_relaxed);
  errno = saved;
  looking.store(0, std::memory_order_release);
}

StreamUse use_of(uint64_t stream) {
  const Driver* cuda = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
  if (!cuda) return StreamUse::forbidden;
  int status = 0;
  if (cuda->stream_is_capturing(reinterpret_cast<void*>(stream), &status) != kCudaSuccess) return StreamUse::forbidden;
  return status ? StreamUse::capturing : StreamUse::free;
}

}  // namespace lockstep::shim
