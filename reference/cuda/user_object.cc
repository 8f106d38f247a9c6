// SPDX-License-Identifier: MIT
//
// See user_object.h.

#include "reference/cuda/user_object.h"

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace lockstep::host {
namespace {

struct UserObject {
  void* pointer;
  cudaHostFn_t destroy;
  uint64_t count;
};
struct Registry {
  std::mutex mutex;
  std::unordered_map<cudaUserObject_t, UserObject> objects;
  uintptr_t last = 0;
};
Registry& registry() {
  static Registry* const the_one = new Registry;  // never destroyed; see engine.h
  return *the_one;
}

}  // namespace

cudaUserObject_t create_user_object(void* pointer, cudaHostFn_t destroy, unsigned int count) {
  const std::lock_guard lock(registry().mutex);
  const auto handle = reinterpret_cast<cudaUserObject_t>(++registry().last);
  registry().objects.emplace(handle, UserObject{pointer, destroy, count});
  return handle;
}

bool retain_user_object(cudaUserObject_t object, unsigned int count) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().objects.find(object);
  if (found == registry().objects.end()) return false;
  found->second.count += count;
  return true;
}

bool release_user_object(cudaUserObject_t object, unsigned int count) {
  UserObject last{};
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().objects.find(object);
    if (found == registry().objects.end() || found->second.count < count) return false;
    found->second.count -= count;
    if (found->second.count > 0) return true;
    last = found->second;
    registry().objects.erase(found);
  }
  last.destroy(last.pointer);
  return true;
}

}  // namespace lockstep::host
