// SPDX-License-Identifier: MIT
//
// Ranks as threads of a test: each with a device of its own and a place in one communicator.

#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "reference/train/core/comm.h"
#include "reference/train/core/device.h"

namespace train {

// Before the first CUDA call of the process.
inline void set_devices(int devices) { setenv("LOCKSTEP_HOST_DEVICES", std::to_string(devices).c_str(), 0); }

// body(comm) on `ranks` threads. Failed expectations inside are seen; do not use ASSERT there.
inline void run_as_ranks(int ranks, const std::function<void(Comm)>& body) {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  std::vector<int> everyone(static_cast<size_t>(ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      check(cudaSetDevice(rank), "cudaSetDevice");
      if (ranks == 1) return body({});
      ncclComm_t handle = nullptr;
      check(ncclCommInitRank(&handle, ranks, id, rank), "ncclCommInitRank");
      body(Comm(handle, rank, ranks, "test", everyone));
    });
  for (std::thread& thread : threads) thread.join();
}

// What lies at a view, once the stream has come to its end.
template <class T>
std::vector<T> host_copy(const Stream& stream, const void* data, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  check(cudaMemcpyAsync(values.data(), data, values.size() * sizeof(T), cudaMemcpyDeviceToHost, stream.get()), "copy");
  stream.synchronize();
  return values;
}
inline std::vector<double> numbers(const Stream& stream, View view) {
  return host_copy<double>(stream, view.data, view.size);
}

template <class T>
T* device_copy(Memory& memory, const std::vector<T>& values) {
  void* data = memory.allocate_bytes(Purpose::workspace, values.size() * sizeof(T));
  check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return static_cast<T*>(data);
}
inline View device_view(Memory& memory, const std::vector<double>& values) {
  return {device_copy(memory, values), static_cast<int64_t>(values.size()), Dtype::f64};
}

// Relative Frobenius distance.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return 1;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? (difference == 0 ? 0 : 1) : std::sqrt(difference / norm);
}

}  // namespace train
