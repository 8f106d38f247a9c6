// SPDX-License-Identifier: MIT
//
// Softmax cross entropy in the pieces between which a split vocabulary is reduced over ranks (1909.08053, section 3).

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/threads.h"

namespace train {

namespace {

constexpr int64_t kRows = 16;

// How many of this rank's columns are classes and not padding.
int64_t real_columns(int64_t columns, int64_t first, int64_t classes) {
  return std::clamp<int64_t>(classes - first, 0, columns);
}

template <class Body>
void for_rows(cudaStream_t stream, const View& logits, int64_t rows, const Body& body) {
  launch(stream, [=] {
    with_type(logits.dtype, [&](auto type) {
      using T = decltype(type);
      for_pieces(rows, kRows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) body(data_of<T>(logits), r);
      });
    });
  });
}

}  // namespace

void loss_row_max(cudaStream_t stream, View row_max, View logits, int64_t rows, int64_t columns, int64_t first,
                  int64_t classes) {
  expect(row_max.dtype == wide(logits.dtype) && row_max.size >= rows && logits.size >= rows * columns, "loss_row_max",
         "row_max[rows], wide, and logits[rows, columns]");
  const int64_t real = real_columns(columns, first, classes);
  for_rows(stream, logits, rows, [=](auto* data, int64_t r) {
    using W = Wide<std::remove_pointer_t<decltype(data)>>;
    const auto* row = data + r * columns;
    data_of<W>(row_max)[r] =
        largest_over(real, -std::numeric_limits<W>::infinity(), [=](int64_t c) { return load(row[c]); });
  });
}

void loss_row_sums(cudaStream_t stream, View target_logit, View sum_exp, View logits, View row_max,
                   const int32_t* targets, int64_t rows, int64_t columns, int64_t first, int64_t classes) {
  expect(row_max.dtype == wide(logits.dtype) && target_logit.dtype == row_max.dtype && sum_exp.dtype == row_max.dtype &&
             row_max.size >= rows && target_logit.size >= rows && sum_exp.size >= rows && logits.size >= rows * columns,
         "loss_row_sums", "statistics [rows], wide, and logits[rows, columns]");
  const int64_t real = real_columns(columns, first, classes);
  for_rows(stream, logits, rows, [=](auto* data, int64_t r) {
    using W = Wide<std::remove_pointer_t<decltype(data)>>;
    const auto* row = data + r * columns;
    const W largest = data_of<W>(row_max)[r];
    const int64_t target = targets[r] - first;
    data_of<W>(target_logit)[r] = targets[r] >= 0 && target >= 0 && target < real ? load(row[target]) - largest : W{0};
    data_of<W>(sum_exp)[r] = sum_over<W>(real, [=](int64_t c) { return exp_of(load(row[c]) - largest); });
  });
}

void loss_sum(cudaStream_t stream, View loss, View target_logit, View sum_exp, const int32_t* targets, int64_t rows) {
  expect(loss.dtype == Dtype::f64 && loss.size >= 1 && target_logit.dtype == sum_exp.dtype &&
             target_logit.size >= rows && sum_exp.size >= rows,
         "loss_sum", "one double and two statistics [rows]");
  launch(stream, [=] {
    with_wide_type(sum_exp.dtype, [&](auto type) {
      using W = decltype(type);
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r)
        if (targets[r] >= 0)
          sum +=
              std::log(static_cast<double>(data_of<W>(sum_exp)[r])) - static_cast<double>(data_of<W>(target_logit)[r]);
      *data_of<double>(loss) += sum;
    });
  });
}

void loss_backward(cudaStream_t stream, View logits, View row_max, View sum_exp, const int32_t* targets, int64_t rows,
                   int64_t columns, int64_t first, int64_t classes, double scale) {
  expect(row_max.dtype == wide(logits.dtype) && sum_exp.dtype == row_max.dtype && row_max.size >= rows &&
             sum_exp.size >= rows && logits.size >= rows * columns,
         "loss_backward", "statistics [rows], wide, and logits[rows, columns]");
  const int64_t real = real_columns(columns, first, classes);
  for_rows(stream, logits, rows, [=](auto* data, int64_t r) {
    using T = std::remove_pointer_t<decltype(data)>;
    using W = Wide<T>;
    auto* row = data + r * columns;
    const int64_t target = targets[r] - first;
    if (targets[r] < 0) {
      std::fill(row, row + columns, T{});
      return;
    }
    const W largest = data_of<W>(row_max)[r], factor = static_cast<W>(scale) / data_of<W>(sum_exp)[r];
#pragma omp simd
    for (int64_t c = 0; c < real; ++c) {
      const W expected = c == target ? static_cast<W>(scale) : W{0};
      row[c] = store<T>(exp_of(load(row[c]) - largest) * factor - expected);
    }
    std::fill(row + real, row + columns, T{});
  });
}

}  // namespace train
