// SPDX-License-Identifier: MIT
//
// Buffers and windows that a rank has registered with a communicator. Peers can read all CUDA memory anyway, so there
// is nothing to do but to give out handles and to know them again.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace lockstep::nccl {

class Registrations {
 public:
  // The same handle for the same range, once more.
  void* add(const void* buffer, size_t bytes);
  bool remove(const void* handle);  // false: no such handle

 private:
  struct Entry {
    const void* buffer = nullptr;
    size_t bytes = 0;
    int uses = 0;
  };
  std::mutex mutex_;
  std::map<const void*, std::unique_ptr<Entry>> entries_;  // by handle
};

}  // namespace lockstep::nccl
