// SPDX-License-Identifier: MIT
//
// Layer norm (Ba et al. 1607.06450) and the gradients of what is added to or multiplies every row: sums over rows,
// column by column, in groups of kGroup rows so that rounding grows with the groups and not with the rows.

#include <algorithm>
#include <cmath>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/threads.h"

namespace train {

namespace {

constexpr int64_t kRows = 32;      // a block of rows
constexpr int64_t kColumns = 256;  // a block of columns
constexpr int64_t kGroup = 64;     // rows summed before their sum is added
constexpr double kEps = 1e-5;

template <class T>
LOCKSTEP_INLINE void norm_row(T* y, Wide<T>& mean, Wide<T>& rstd, const T* x, const T* gain, const T* bias,
                              int64_t width) {
  using W = Wide<T>;
  W sum = 0, squares = 0;
  for (int64_t c = 0; c < width; ++c) sum += load(x[c]);
  mean = sum / static_cast<W>(width);
  for (int64_t c = 0; c < width; ++c) {
    const W centred = load(x[c]) - mean;
    squares += centred * centred;
  }
  rstd = 1 / std::sqrt(squares / static_cast<W>(width) + static_cast<W>(kEps));
  for (int64_t c = 0; c < width; ++c) y[c] = store<T>((load(x[c]) - mean) * rstd * load(gain[c]) + load(bias[c]));
}

// With g = y_grad * gain and n = (x - mean) * rstd: x_grad = rstd (g - mean of g - n * mean of (g n)).
template <class T, class U>
LOCKSTEP_INLINE void norm_row_backward(U* x_grad, bool add_it, const T* y_grad, const T* x, const T* gain, Wide<T> mean,
                                       Wide<T> rstd, int64_t width) {
  using W = Wide<T>;
  const auto scaled = [=](int64_t c) { return load(y_grad[c]) * load(gain[c]); };
  const auto normal = [=](int64_t c) { return (load(x[c]) - mean) * rstd; };
  const W sum = sum_over<W>(width, scaled) / static_cast<W>(width);
  const W product = sum_over<W>(width, [=](int64_t c) { return scaled(c) * normal(c); }) / static_cast<W>(width);
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    const W value = rstd * (scaled(c) - sum - normal(c) * product);
    x_grad[c] = store<U>(add_it ? value + static_cast<W>(load(x_grad[c])) : value);
  }
}

// out[columns] (+)= the sum over rows of what line(row) gives as a function of the column.
template <class W, class Line>
void sum_columns(W* out, bool add_it, int64_t rows, int64_t columns, const Line& line) {
  for_pieces(columns, kColumns, [&](int64_t begin, int64_t end) {
    W total[kColumns] = {}, part[kColumns];
    const int64_t count = end - begin;
    for (int64_t group = 0; group < rows; group += kGroup) {
      std::fill(part, part + count, W{0});
      for (int64_t r = group; r < std::min(rows, group + kGroup); ++r) {
        const auto term = line(r);
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) part[c] += term(begin + c);
      }
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) total[c] += part[c];
    }
    W* to = out + begin;
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) to[c] = add_it ? to[c] + total[c] : total[c];
  });
}

}  // namespace

void layernorm_forward(cudaStream_t stream, View y, View mean, View rstd, View x, View gain, View bias, int64_t rows,
                       int64_t width) {
  expect(y.dtype == x.dtype && gain.dtype == x.dtype && bias.dtype == x.dtype && mean.dtype == wide(x.dtype) &&
             rstd.dtype == wide(x.dtype),
         "layernorm_forward", "views of one type and wide statistics");
  expect(y.size >= rows * width && x.size >= rows * width && mean.size >= rows && rstd.size >= rows &&
             gain.size >= width && bias.size >= width,
         "layernorm_forward", "x and y [rows, width], statistics [rows], gain and bias [width]");
  launch(stream, [=] {
    with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      using W = Wide<T>;
      for_pieces(rows, kRows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          norm_row(data_of<T>(y) + r * width, data_of<W>(mean)[r], data_of<W>(rstd)[r], data_of<T>(x) + r * width,
                   data_of<T>(gain), data_of<T>(bias), width);
      });
    });
  });
}

void layernorm_backward_input(cudaStream_t stream, Into x_grad, View y_grad, View x, View gain, View mean, View rstd,
                              int64_t rows, int64_t width) {
  expect(x_grad.view.dtype == x.dtype && y_grad.dtype == x.dtype && gain.dtype == x.dtype &&
             mean.dtype == wide(x.dtype) && rstd.dtype == wide(x.dtype),
         "layernorm_backward_input", "views of one type and wide statistics");
  expect(x_grad.view.size >= rows * width && y_grad.size >= rows * width && x.size >= rows * width &&
             mean.size >= rows && rstd.size >= rows && gain.size >= width,
         "layernorm_backward_input", "x, x_grad and y_grad [rows, width], statistics [rows], gain [width]");
  launch(stream, [=] {
    with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      using W = Wide<T>;
      for_pieces(rows, kRows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          norm_row_backward(data_of<T>(x_grad.view) + r * width, x_grad.add, data_of<T>(y_grad) + r * width,
                            data_of<T>(x) + r * width, data_of<T>(gain), data_of<W>(mean)[r], data_of<W>(rstd)[r],
                            width);
      });
    });
  });
}

void layernorm_backward_weight(cudaStream_t stream, Into gain_grad, Into bias_grad, View y_grad, View x, View mean,
                               View rstd, int64_t rows, int64_t width) {
  const auto is_wide = [&](const Into& grad) { return !grad.view || grad.view.dtype == wide(x.dtype); };
  const auto is_long = [&](const Into& grad) { return !grad.view || grad.view.size >= width; };
  expect(y_grad.dtype == x.dtype && is_wide(gain_grad) && is_wide(bias_grad) && mean.dtype == wide(x.dtype) &&
             rstd.dtype == wide(x.dtype),
         "layernorm_backward_weight", "x and y_grad of one type, the others wide");
  expect(is_long(gain_grad) && is_long(bias_grad) && y_grad.size >= rows * width && x.size >= rows * width &&
             mean.size >= rows && rstd.size >= rows,
         "layernorm_backward_weight", "x and y_grad [rows, width], statistics [rows], gradients [width]");
  launch(stream, [=] {
    with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      using W = Wide<T>;
      const T *g = data_of<T>(y_grad), *in = data_of<T>(x);
      const W *m = data_of<W>(mean), *s = data_of<W>(rstd);
      if (gain_grad.view)
        sum_columns(data_of<W>(gain_grad.view), gain_grad.add, rows, width, [=](int64_t r) {
          const T *grad = g + r * width, *row = in + r * width;
          const W shift = m[r], factor = s[r];
          return [=](int64_t c) { return load(grad[c]) * ((load(row[c]) - shift) * factor); };
        });
      if (bias_grad.view)
        sum_columns(data_of<W>(bias_grad.view), bias_grad.add, rows, width, [=](int64_t r) {
          const T* grad = g + r * width;
          return [=](int64_t c) { return load(grad[c]); };
        });
    });
  });
}

void bias_backward(cudaStream_t stream, Into b_grad, View y_grad, int64_t rows, int64_t outputs) {
  expect(b_grad.view.dtype == wide(y_grad.dtype) && b_grad.view.size >= outputs && y_grad.size >= rows * outputs,
         "bias_backward", "b_grad[outputs], wide, and y_grad[rows, outputs]");
  launch(stream, [=] {
    with_type(y_grad.dtype, [&](auto type) {
      using T = decltype(type);
      const T* g = data_of<T>(y_grad);
      sum_columns(data_of<Wide<T>>(b_grad.view), b_grad.add, rows, outputs, [=](int64_t r) {
        const T* grad = g + r * outputs;
        return [=](int64_t c) { return load(grad[c]); };
      });
    });
  });
}

}  // namespace train
