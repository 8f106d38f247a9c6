// SPDX-License-Identifier: MIT
//
// The first lines of every runtime function that takes a stream.

#pragma once

#include <memory>

#include "reference/cuda/engine.h"
#include "reference/cuda/runtime.h"

namespace lockstep::host {

// The stream a handle means on the calling thread's device, or why there is none.
inline cudaError_t resolve(cudaStream_t handle, std::shared_ptr<Stream>& stream) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  stream = engine().stream(handle, engine().current_device());
  return stream ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

}  // namespace lockstep::host
