// SPDX-License-Identifier: MIT
//
// Kernels without neighbours: each element by itself.

#include <cmath>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/threads.h"

namespace train {

namespace {

constexpr int64_t kPiece = 16384;

// gelu(x) = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form, for (1 + tanh u) / 2 = sigmoid(2 u).
constexpr double kTwice = 2 * 0.79788456080286535588;
constexpr double kCube = 0.044715;

template <class W>
LOCKSTEP_INLINE W gelu(W x) {
  const W u2 = static_cast<W>(kTwice) * (x + static_cast<W>(kCube) * x * x * x);
  return x / (1 + exp_of(-u2));
}
template <class W>
LOCKSTEP_INLINE W gelu_slope(W x) {  // beyond 30 it is 0 or 1 in both types, and squares cannot overflow before it
  x = x < -30 ? -30 : x > 30 ? 30 : x;
  const W square = x * x;
  const W u2 = static_cast<W>(kTwice) * (x + static_cast<W>(kCube) * square * x);
  const W s = 1 / (1 + exp_of(-u2));
  return s + x * s * (1 - s) * (static_cast<W>(kTwice) * (1 + static_cast<W>(3 * kCube) * square));
}

template <class Body>
void for_elements(cudaStream_t stream, View out, const Body& body) {
  if (out.size == 0) return;
  launch(stream, [=] {
    with_type(out.dtype, [&](auto type) {
      using T = decltype(type);
      for_pieces(out.size, kPiece, [&](int64_t begin, int64_t end) { body(data_of<T>(out), begin, end); });
    });
  });
}

}  // namespace

void fill(cudaStream_t stream, View out, double value) {
  for_elements(stream, out, [=](auto* to, int64_t begin, int64_t end) {
    using T = std::remove_pointer_t<decltype(to)>;
    const T stored = store<T>(value);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = stored;
  });
}

void convert(cudaStream_t stream, View out, View in) {
  expect(out.size == in.size, "convert", "as many elements in as out");
  for_elements(stream, out, [=](auto* to, int64_t begin, int64_t end) {
    using T = std::remove_pointer_t<decltype(to)>;
    with_type(in.dtype, [&](auto type) {
      using From = decltype(type);
      const auto* from = data_of<From>(in);
      if constexpr (std::is_same_v<T, From>) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) to[i] = from[i];
      } else {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) to[i] = store<T>(load(from[i]));
      }
    });
  });
}

void add(cudaStream_t stream, View out, View a, View b) {
  expect(out.size == a.size && a.size == b.size && out.dtype == a.dtype && a.dtype == b.dtype, "add",
         "three views of one size and type");
  for_elements(stream, out, [=](auto* to, int64_t begin, int64_t end) {
    using T = std::remove_pointer_t<decltype(to)>;
    const auto *left = data_of<T>(a), *right = data_of<T>(b);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = store<T>(load(left[i]) + load(right[i]));
  });
}

void add_bias(cudaStream_t stream, View y, View b, int64_t rows, int64_t outputs) {
  expect(y.size >= rows * outputs && b.size >= outputs && y.dtype == b.dtype, "add_bias",
         "y[rows, outputs] and b[outputs] of one type");
  launch(stream, [=] {
    with_type(y.dtype, [&](auto type) {
      using T = decltype(type);
      for_pieces(rows, 64, [&](int64_t begin, int64_t end) {
        const T* shift = data_of<T>(b);
        for (int64_t r = begin; r < end; ++r) {
          T* row = data_of<T>(y) + r * outputs;
#pragma omp simd
          for (int64_t c = 0; c < outputs; ++c) row[c] = store<T>(load(row[c]) + load(shift[c]));
        }
      });
    });
  });
}

// In double, rounded once; with factor 1 that is the sum in the views' own type.
void add_to(cudaStream_t stream, View sum, View term, double factor) {
  expect(sum.size == term.size, "add_to", "as many terms as sums");
  for_elements(stream, sum, [=](auto* to, int64_t begin, int64_t end) {
    using T = std::remove_pointer_t<decltype(to)>;
    with_type(term.dtype, [&](auto type) {
      const auto* from = data_of<decltype(type)>(term);
#pragma omp simd
      for (int64_t i = begin; i < end; ++i)
        to[i] = store<T>(static_cast<double>(load(to[i])) + factor * static_cast<double>(load(from[i])));
    });
  });
}

void scale(cudaStream_t stream, View inout, double factor) {
  for_elements(stream, inout, [=](auto* to, int64_t begin, int64_t end) {
    using T = std::remove_pointer_t<decltype(to)>;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = store<T>(static_cast<double>(load(to[i])) * factor);
  });
}

void divide(cudaStream_t stream, View inout, double divisor) {
  for_elements(stream, inout, [=](auto* to, int64_t begin, int64_t end) {
    using T = std::remove_pointer_t<decltype(to)>;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = store<T>(static_cast<double>(load(to[i])) / divisor);
  });
}

void gelu_forward(cudaStream_t stream, View out, View in) {
  expect(out.size == in.size && out.dtype == in.dtype, "gelu_forward", "two views of one size and type");
  for_elements(stream, out, [=](auto* to, int64_t begin, int64_t end) {
    using T = std::remove_pointer_t<decltype(to)>;
    const auto* from = data_of<T>(in);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = store<T>(gelu(load(from[i])));
  });
}

void gelu_backward(cudaStream_t stream, View in_grad, View out_grad, View in) {
  expect(in_grad.size == in.size && out_grad.size == in.size && in_grad.dtype == in.dtype && out_grad.dtype == in.dtype,
         "gelu_backward", "three views of one size and type");
  for_elements(stream, in_grad, [=](auto* to, int64_t begin, int64_t end) {
    using T = std::remove_pointer_t<decltype(to)>;
    const auto *grad = data_of<T>(out_grad), *from = data_of<T>(in);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) to[i] = store<T>(load(grad[i]) * gelu_slope(load(from[i])));
  });
}

}  // namespace train
