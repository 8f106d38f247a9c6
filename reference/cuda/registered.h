// SPDX-License-Identifier: MIT
//
// Memory the runtime knows that does not lie in this process's heap: host memory the user registered, and other
// processes' memory that was opened here.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "cuda_runtime_api.h"
#include "reference/cuda/heap.h"

namespace lockstep::host {

// Errors: null or empty, already registered (or a part of it).
cudaError_t register_host(void* pointer, size_t bytes, unsigned int flags, int device);
cudaError_t unregister_host(void* pointer);  // an error if no range registered starts there

// A handle names a block of some process's heap; `device` is the opener's view of where it is.
cudaError_t ipc_handle(void* pointer, cudaIpcMemHandle_t* handle);
cudaError_t ipc_open(const cudaIpcMemHandle_t& handle, void** pointer);
cudaError_t ipc_close(void* pointer);  // unmapped when it was closed as often as it was opened

// What a pointer points into, wherever that is; `registered` tells pinned memory of ours from the user's.
struct Known {
  HeapBlock block;
  bool registered = false;
  unsigned int flags = 0;
};
std::optional<Known> known_memory(const void* pointer);
// Its kind, pageable if it is unknown.
Memory memory_of(const void* pointer);

}  // namespace lockstep::host
