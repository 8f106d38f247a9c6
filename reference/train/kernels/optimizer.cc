// SPDX-License-Identifier: MIT
//
// Optimizers, and the sum of squares that clipping needs.

#include <algorithm>
#include <array>
#include <cmath>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/threads.h"

namespace train {

namespace {

constexpr int64_t kPiece = 16384;

// --- double-double (Dekker 1971): a value as the unevaluated sum of two doubles, the second below the first's rounding
struct Pair {
  double high = 0, low = 0;
};

LOCKSTEP_INLINE Pair two_sum(double a, double b) {  // a + b, exactly
  const double sum = a + b, back = sum - a;
  return {sum, (a - (sum - back)) + (b - back)};
}
LOCKSTEP_INLINE Pair square_of(double a) {  // a * a, exactly: by halves of 26 bits
  const double product = a * a, shifted = a * 134217729.0;
  const double high = shifted - (shifted - a), low = a - high;
  return {product, ((high * high - product) + 2 * high * low) + low * low};
}
LOCKSTEP_INLINE Pair plus(Pair a, Pair b) {
  const Pair sum = two_sum(a.high, b.high);
  const double low = sum.low + (a.low + b.low);
  const double high = sum.high + low;
  return {high, low - (high - sum.high)};
}

template <class T>
LOCKSTEP_INLINE Pair squares(const T* values, int64_t count) {
  double high[kLanes] = {}, low[kLanes] = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = count - i < kLanes ? count - i : kLanes;
#pragma omp simd
    for (int64_t l = 0; l < lanes; ++l) {
      const Pair sum = plus({high[l], low[l]}, square_of(static_cast<double>(load(values[i + l]))));
      high[l] = sum.high;
      low[l] = sum.low;
    }
  }
  Pair sum;
  for (int64_t l = 0; l < kLanes; ++l) sum = plus(sum, {high[l], low[l]});
  return sum;
}

// body(begin, end, W{}) updates a piece of master, whose type is W; then value is rounded from it where they differ.
template <class Body>
void for_parameters(cudaStream_t stream, const View& value, const View& master, const Body& body) {
  launch(stream, [=] {
    with_type(value.dtype, [&](auto type) {
      using U = decltype(type);
      for_pieces(master.size, kPiece, [&](int64_t begin, int64_t end) {
        body(begin, end, Wide<U>{});
        const auto* from = data_of<Wide<U>>(master);
        if (value.data == master.data) return;
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) data_of<U>(value)[i] = store<U>(from[i]);
      });
    });
  });
}

void expect_parameters(const char* kernel, const View& value, const View& master, const View& grad) {
  expect(master.dtype == wide(value.dtype) && grad.dtype == master.dtype && value.size == master.size &&
             grad.size == master.size,
         kernel, "value, and master and grad as large and wide");
}

}  // namespace

void add_squares(cudaStream_t stream, View high_low, View values) {
  expect(high_low.dtype == Dtype::f64 && high_low.size >= 2, "add_squares", "two doubles to add to");
  launch(stream, [=] {
    with_type(values.dtype, [&](auto type) {
      using T = decltype(type);
      constexpr int64_t kWave = 64;
      Pair total{data_of<double>(high_low)[0], data_of<double>(high_low)[1]};
      for (int64_t wave = 0; wave < values.size; wave += kWave * kPiece) {
        std::array<Pair, kWave> parts;
        const int64_t count = std::min(values.size - wave, kWave * kPiece);
        for_pieces(count, kPiece, [&](int64_t begin, int64_t end) {
          parts[static_cast<size_t>(begin / kPiece)] = squares(data_of<T>(values) + wave + begin, end - begin);
        });
        for (const Pair& part : parts) total = plus(total, part);
      }
      data_of<double>(high_low)[0] = total.high;
      data_of<double>(high_low)[1] = total.low;
    });
  });
}

void adamw(cudaStream_t stream, View value, View master, View first, View second, View grad, double grad_factor,
           AdamW settings) {
  expect_parameters("adamw", value, master, grad);
  expect(first.dtype == master.dtype && second.dtype == master.dtype && first.size == master.size &&
             second.size == master.size,
         "adamw", "moments as large and wide as master");
  const double bias1 = 1 - std::pow(settings.beta1, static_cast<double>(settings.step));
  const double bias2 = 1 - std::pow(settings.beta2, static_cast<double>(settings.step));
  for_parameters(stream, value, master, [=](int64_t begin, int64_t end, auto type) {
    using W = decltype(type);
    const auto factor = static_cast<W>(grad_factor), beta1 = static_cast<W>(settings.beta1),
               rest1 = static_cast<W>(1 - settings.beta1), beta2 = static_cast<W>(settings.beta2),
               rest2 = static_cast<W>(1 - settings.beta2), rate = static_cast<W>(settings.rate / bias1),
               root2 = static_cast<W>(1 / std::sqrt(bias2)), eps = static_cast<W>(settings.eps),
               keep = static_cast<W>(1 - settings.rate * settings.decay);
    W *p = data_of<W>(master), *m = data_of<W>(first), *v = data_of<W>(second);
    const W* g_ = data_of<W>(grad);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const W g = g_[i] * factor;
      m[i] = beta1 * m[i] + rest1 * g;
      v[i] = beta2 * v[i] + rest2 * (g * g);
      p[i] = p[i] * keep - rate * (m[i] / (std::sqrt(v[i]) * root2 + eps));
    }
  });
}

void sgd(cudaStream_t stream, View value, View master, View first, View grad, double grad_factor, Sgd settings) {
  expect_parameters("sgd", value, master, grad);
  expect(first.dtype == master.dtype && first.size == master.size, "sgd", "a moment as large and wide as master");
  for_parameters(stream, value, master, [=](int64_t begin, int64_t end, auto type) {
    using W = decltype(type);
    const auto factor = static_cast<W>(grad_factor), momentum = static_cast<W>(settings.momentum),
               decay = static_cast<W>(settings.decay), rate = static_cast<W>(settings.rate);
    W *p = data_of<W>(master), *m = data_of<W>(first);
    const W* g = data_of<W>(grad);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      m[i] = momentum * m[i] + (g[i] * factor + decay * p[i]);
      p[i] -= rate * m[i];
    }
  });
}

}  // namespace train
