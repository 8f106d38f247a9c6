// SPDX-License-Identifier: MIT
//
// What the trainer computes on: a piece of device memory and the type of its elements, no more. Shapes are arguments of
// the functions that compute (kernels.h), as in BLAS: a view that carried strides would let every layout error through
// as a legal view.

#pragma once

#include <cstddef>
#include <cstdint>

namespace train {

enum class Dtype { f64, f32, bf16 };

inline size_t size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

// Gradients, optimizer state and norms' statistics are kept in this type: bf16 is for parameters and activations only.
inline Dtype wide(Dtype dtype) { return dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32; }

struct View {
  void* data = nullptr;
  int64_t size = 0;  // elements
  Dtype dtype = Dtype::f32;

  explicit operator bool() const { return data != nullptr; }
  size_t bytes() const { return static_cast<size_t>(size) * size_of(dtype); }
  View part(int64_t begin, int64_t count) const {
    return {static_cast<char*>(data) + static_cast<size_t>(begin) * size_of(dtype), count, dtype};
  }
};

// A result: where it goes and whether it is added to what is there. Gradients of one micro-batch are written by the
// first use of a parameter and added by every further one, so nothing need be cleared first.
struct Into {
  View view;
  bool add = false;
};

}  // namespace train
