// SPDX-License-Identifier: MIT
//
// Matrix products, by OpenBLAS with one thread a call. A product is cut into tiles of the result, of fixed size:
// threads take tiles, so the bits do not depend on their number. bf16 is widened tile by tile, multiplied and summed in
// fp32, and rounded once. What is added to (further uses of a weight) is computed apart, in the same tiles, and then
// added.

#include <algorithm>
#include <mutex>

#include "reference/train/kernels/gemm.h"
#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/threads.h"

namespace train {

namespace {

// The largest tile of the result, and how much of a sum is widened at a time. Tiles are large because each packs its
// operands anew, which costs a tenth of the time at this size and a quarter at half of it.
constexpr int64_t kTile = 512, kDepth = 128, kRound = 32;
static_assert(kTile * kTile * sizeof(double) <= kScratch);
static_assert((kTile + 2 * kDepth) * kTile * sizeof(float) <= kScratch);

// A side cut into pieces of one size, a multiple of kRound.
struct Cut {
  int64_t pieces, size;
};
Cut cut(int64_t length, int64_t pieces) {
  const int64_t size = ((length + pieces - 1) / pieces + kRound - 1) / kRound * kRound;
  return {(length + size - 1) / size, size};
}

struct Tiles {
  Cut down, across;
};
Tiles tiles_of(int64_t m, int64_t n) {
  Tiles tiles{cut(m, (m + kTile - 1) / kTile), cut(n, (n + kTile - 1) / kTile)};
  if (tiles.down.pieces * tiles.across.pieces > 1) return tiles;
  if (m > kTile / 2) tiles.down = cut(m, 2);  // something to share
  return tiles;
}

// An operand as it lies in memory, and whether the product reads it transposed.
struct Operand {
  View view;
  int64_t stride;
  bool turned;
  // Where the element lies that the product sees in (row, column).
  int64_t at(int64_t row, int64_t column) const { return turned ? column * stride + row : row * stride + column; }
};

// The tile [rows, columns] at (row, column) of a b into c, which is dense. sums over `depth`.
template <class T>
LOCKSTEP_INLINE void multiply_tile(const Operand& a, const Operand& b, int64_t row, int64_t column, int64_t rows,
                                   int64_t columns, int64_t depth, Wide<T>* c, int64_t stride) {
  if constexpr (!std::is_same_v<T, Bf16>) {
    gemm(a.turned, b.turned, rows, columns, depth, data_of<T>(a.view) + a.at(row, 0), a.stride,
         data_of<T>(b.view) + b.at(0, column), b.stride, false, c, stride);
  } else {
    auto* wide_a = static_cast<float*>(scratch()) + kTile * kTile;
    float* wide_b = wide_a + kTile * kDepth;
    for (int64_t k = 0; k == 0 || k < depth; k += kDepth) {  // an empty sum is written too
      const int64_t count = std::min(kDepth, depth - k);
      const auto widen = [](const Operand& from, int64_t at_row, int64_t at_column, int64_t r, int64_t c_, float* to) {
        const int64_t lines = from.turned ? c_ : r, length = from.turned ? r : c_;
        const Bf16* begin = data_of<Bf16>(from.view) + from.at(at_row, at_column);
        for (int64_t i = 0; i < lines; ++i) {
          const Bf16* in = begin + i * from.stride;
          float* out = to + i * length;
#pragma omp simd
          for (int64_t j = 0; j < length; ++j) out[j] = load(in[j]);
        }
        return length;
      };
      const int64_t lda = widen(a, row, k, rows, count, wide_a), ldb = widen(b, k, column, count, columns, wide_b);
      gemm(a.turned, b.turned, rows, columns, count, wide_a, lda, wide_b, ldb, k > 0, c, stride);
    }
  }
}

// What is left to do with a tile's row: the bias, what was there before, the type of the result.
template <class U, class W, class T>
LOCKSTEP_INLINE void finish_row(U* to, const W* sum, const T* bias, bool add_it, int64_t count) {
  if (bias != nullptr && !add_it) {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) to[c] = store<U>(sum[c] + static_cast<W>(load(bias[c])));
  } else if (add_it) {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) to[c] = store<U>(sum[c] + static_cast<W>(load(to[c])));
  } else {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) to[c] = store<U>(sum[c]);
  }
}

// out[m, n] (+)= a b, or = a b + bias: one tile. U is the type of out.
template <class T, class U>
LOCKSTEP_INLINE void product_tile(const Into& out, const Operand& a, const Operand& b, const View& bias, int64_t row,
                                  int64_t column, int64_t rows, int64_t columns, int64_t n, int64_t depth) {
  using W = Wide<T>;
  U* to = data_of<U>(out.view) + row * n + column;
  W* tile = static_cast<W*>(scratch());
  int64_t stride = columns;
  bool in_place = false;
  if constexpr (std::is_same_v<U, W>) {
    if (!out.add) {
      tile = to;
      stride = n;
      in_place = true;
    }
  }
  multiply_tile<T>(a, b, row, column, rows, columns, depth, tile, stride);
  const T* shift = bias ? data_of<T>(bias) + column : nullptr;
  if (in_place && shift == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) finish_row(to + r * n, tile + r * stride, shift, out.add, columns);
}

template <class T, class U>
void product(const Into& out, const Operand& a, const Operand& b, const View& bias, int64_t m, int64_t n,
             int64_t depth) {
  const Tiles tiles = tiles_of(m, n);
  const Cut rows = tiles.down, columns = tiles.across;
  for_blocks(rows.pieces * columns.pieces, [&](int64_t block) {
    const int64_t row = block / columns.pieces * rows.size, column = block % columns.pieces * columns.size;
    product_tile<T, U>(out, a, b, bias, row, column, std::min(rows.size, m - row), std::min(columns.size, n - column),
                       n, depth);
  });
}

void launch_product(cudaStream_t stream, Into out, Operand a, Operand b, View bias, int64_t m, int64_t n,
                    int64_t depth) {
  if (m == 0 || n == 0) return;
  prepare_blas();
  launch(stream, [=] {
    with_type(a.view.dtype, [&](auto type) {
      using T = decltype(type);
      if (out.view.dtype == wide(a.view.dtype))
        product<T, Wide<T>>(out, a, b, bias, m, n, depth);
      else
        product<T, T>(out, a, b, bias, m, n, depth);
    });
  });
}

bool fits(const View& out, Dtype in) { return out.dtype == in || out.dtype == wide(in); }

}  // namespace

void prepare_blas() {
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
}

void linear_forward(cudaStream_t stream, View y, View x, View w, View b, int64_t rows, int64_t inputs,
                    int64_t outputs) {
  expect(x.dtype == w.dtype && fits(y, x.dtype) && (!b || b.dtype == x.dtype), "linear_forward", "views of one type");
  expect(y.size >= rows * outputs && x.size >= rows * inputs && w.size >= outputs * inputs && (!b || b.size >= outputs),
         "linear_forward", "y[rows, outputs], x[rows, inputs], w[outputs, inputs], b[outputs]");
  launch_product(stream, {y, false}, {x, inputs, false}, {w, inputs, true}, b, rows, outputs, inputs);
}

void linear_backward_input(cudaStream_t stream, Into x_grad, View y_grad, View w, int64_t rows, int64_t inputs,
                           int64_t outputs) {
  expect(y_grad.dtype == w.dtype && fits(x_grad.view, w.dtype), "linear_backward_input", "views of one type");
  expect(x_grad.view.size >= rows * inputs && y_grad.size >= rows * outputs && w.size >= outputs * inputs,
         "linear_backward_input", "x_grad[rows, inputs], y_grad[rows, outputs], w[outputs, inputs]");
  launch_product(stream, x_grad, {y_grad, outputs, false}, {w, inputs, false}, {}, rows, inputs, outputs);
}

void linear_backward_weight(cudaStream_t stream, Into w_grad, View y_grad, View x, int64_t rows, int64_t inputs,
                            int64_t outputs) {
  expect(y_grad.dtype == x.dtype && fits(w_grad.view, x.dtype), "linear_backward_weight",
         "x and y_grad of one type, w_grad of it or wide");
  expect(w_grad.view.size >= outputs * inputs && y_grad.size >= rows * outputs && x.size >= rows * inputs,
         "linear_backward_weight", "w_grad[outputs, inputs], y_grad[rows, outputs], x[rows, inputs]");
  launch_product(stream, w_grad, {y_grad, outputs, true}, {x, inputs, false}, {}, outputs, inputs, rows);
}

}  // namespace train
