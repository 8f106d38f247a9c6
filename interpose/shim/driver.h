// SPDX-License-Identifier: MIT
//
// The few functions of the CUDA driver that the shim calls, looked up in the libcuda.so.1 that the job has loaded. The
// driver and not the runtime, because a process may hold several runtimes (static copies among them) but only one
// driver. The shim never loads a driver by itself, and never makes a context.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::shim {

struct Driver {
  int (*stream_is_capturing)(void* stream, int* status);
  int (*exchange_capture_mode)(int* mode);
  int (*context_get)(void** context);
  int (*context_set)(void* context);
  int (*stream_context)(void* stream, void** context);          // may be nullptr
  int (*context_device)(int* device);                           // may be nullptr
  int (*event_create)(void** event, unsigned flags);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event);
  int (*launch_host)(void* stream, void (*function)(void*), void* data);  // may be nullptr
  int (*pointer_attribute)(void* data, int attribute, uint64_t pointer);  // may be nullptr
};

inline constexpr int kCudaSuccess = 0, kCudaNotReady = 600;

// Looks again when nothing was found so far. Called when a communicator is made, since CUDA may have been loaded until
// then.
void find_driver();

extern const Driver* driver;  // nullptr = none

enum class StreamUse { free, capturing, forbidden };  // forbidden: nothing may be asked or recorded just now
StreamUse use_of(uint64_t stream);

}  // namespace lockstep::shim
