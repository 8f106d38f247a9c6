// SPDX-License-Identifier: MIT
//
// Kernels that draw random numbers: initial weights and dropout.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/philox.h"
#include "reference/train/kernels/threads.h"

namespace train {

namespace {

constexpr int64_t kRows = 64;

// Box-Muller: two uniform numbers, the first in (0, 1], to two normal ones.
std::array<double, 4> normals_of(const Words& words) {
  std::array<double, 4> out;
  for (size_t i = 0; i < 4; i += 2) {
    const double radius = std::sqrt(-2 * std::log(1 - uniform_of(words[i])));
    const double angle = 2 * std::numbers::pi * uniform_of(words[i + 1]);
    out[i] = radius * std::cos(angle);
    out[i + 1] = radius * std::sin(angle);
  }
  return out;
}

template <class T>
void normal_row(T* out, const RandomStream& random, int64_t parameter, double std, int64_t row, int64_t column,
                int64_t columns) {
  std::array<double, 4> block{};
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t feature = column + c;
    if (c == 0 || feature % 4 == 0) block = normals_of(random_words(random, parameter, row, feature / 4));
    out[c] = store<T>(std * block[static_cast<size_t>(feature % 4)]);
  }
}

template <class T>
LOCKSTEP_INLINE void drop_row(T* out, const T* in, const RandomStream& random, double p, int64_t sample,
                              int64_t position, int64_t first_column, int64_t columns) {
  using W = Wide<T>;
  constexpr int64_t kPiece = 256;
  const uint32_t threshold = threshold_of(p);
  const W factor = static_cast<W>(1 / (1 - p));
  uint32_t room[kPiece + kRandomSlack];
  for (int64_t begin = 0; begin < columns; begin += kPiece) {
    const int64_t count = std::min(kPiece, columns - begin);
    const uint32_t* words = random_row(room, random, sample, position, first_column + begin, count);
    T* to = out + begin;
    const T* from = in + begin;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) to[c] = store<T>(words[c] >> 8 >= threshold ? load(from[c]) * factor : W{0});
  }
}

}  // namespace

void fill_normal(cudaStream_t stream, View out, RandomStream random, int64_t parameter, double std, int64_t rows,
                 int64_t columns, int64_t row, int64_t column) {
  expect(out.size >= rows * columns, "fill_normal", "out [rows, columns]");
  launch(stream, [=] {
    with_type(out.dtype, [&](auto type) {
      using T = decltype(type);
      for_pieces(rows, kRows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          normal_row(data_of<T>(out) + r * columns, random, parameter, std, row + r, column, columns);
      });
    });
  });
}

void dropout(cudaStream_t stream, View out, View in, RandomStream random, double p, const int64_t* samples,
             const int32_t* order, int64_t rows, int64_t columns, int64_t first_column) {
  expect(out.dtype == in.dtype && out.size >= rows * columns && in.size >= rows * columns, "dropout",
         "out and in [rows, columns] of one type");
  if (p == 0) {
    if (out.data != in.data) convert(stream, out.part(0, rows * columns), in.part(0, rows * columns));
    return;
  }
  launch(stream, [=] {
    with_type(out.dtype, [&](auto type) {
      using T = decltype(type);
      for_pieces(rows, kRows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          drop_row(data_of<T>(out) + r * columns, data_of<T>(in) + r * columns, random, p, samples[r], order[r],
                   first_column, columns);
      });
    });
  });
}

}  // namespace train
