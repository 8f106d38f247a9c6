// SPDX-License-Identifier: MIT
//
// How a kernel of this folder becomes work of a stream: a closure that the stream's thread runs as a host function, so
// that overlap, order and races are as real as on a GPU. Types are chosen inside it, once a kernel.

#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <utility>

#include "reference/train/core/device.h"
#include "reference/train/core/tensor.h"
#include "reference/train/kernels/numbers.h"

namespace train {

template <class Body>
void launch(cudaStream_t stream, Body body) {
  auto held = std::make_unique<Body>(std::move(body));
  const auto run = [](void* data) { (*std::unique_ptr<Body>(static_cast<Body*>(data)))(); };
  check(cudaLaunchHostFunc(stream, run, held.get()), "cudaLaunchHostFunc");
  static_cast<void>(held.release());  // the stream's now
}

// Calls body(T{}) with the C++ type of a dtype.
template <class Body>
void with_type(Dtype dtype, const Body& body) {
  if (dtype == Dtype::f64) return body(double{});
  if (dtype == Dtype::f32) return body(float{});
  body(Bf16{});
}
// body(T{}) where bf16 cannot occur.
template <class Body>
void with_wide_type(Dtype dtype, const Body& body) {
  if (dtype == Dtype::f64) return body(double{});
  body(float{});
}

// Ends the process: a caller passed views that do not fit together, and what would follow is memory overwritten.
[[noreturn]] void misuse(const char* kernel, const char* expected);
inline void expect(bool holds, const char* kernel, const char* expected) {
  if (!holds) misuse(kernel, expected);
}

template <class T>
T* data_of(const View& view) {
  return static_cast<T*>(view.data);
}

}  // namespace train
