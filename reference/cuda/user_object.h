// SPDX-License-Identifier: MIT
//
// cudaUserObject_t: something of the user's that lives until nobody counts on it any more, graphs included.

#pragma once

#include "cuda_runtime_api.h"

namespace lockstep::host {

cudaUserObject_t create_user_object(void* pointer, cudaHostFn_t destroy, unsigned int count);
// false: there is no such object.
bool retain_user_object(cudaUserObject_t object, unsigned int count);
bool release_user_object(cudaUserObject_t object, unsigned int count);  // calls `destroy` with the last one

// One count, held by a graph and the graphs made from it.
struct UserReference {
  explicit UserReference(cudaUserObject_t of) : object(of) {}
  ~UserReference() { release_user_object(object, 1); }
  UserReference(const UserReference&) = delete;
  UserReference& operator=(const UserReference&) = delete;
  const cudaUserObject_t object;
};

}  // namespace lockstep::host
