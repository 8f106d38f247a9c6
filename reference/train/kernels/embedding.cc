// SPDX-License-Identifier: MIT
//
// Tables read by index, and rotary positions (Su et al. 2104.09864).

#include <algorithm>
#include <cmath>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/threads.h"

namespace train {

namespace {

constexpr int64_t kRows = 64;
// A block of the table's gradient: its sums lie in the scratch memory until they are whole.
constexpr int64_t kTableRows = 32, kTableColumns = 512;
static_assert(kTableRows * kTableColumns * sizeof(double) <= kScratch);

template <class T, class U>
void embed_row(U* y, bool add_it, const T* entry, int64_t width) {
  if (entry == nullptr) {
    if (!add_it) std::fill(y, y + width, U{});
    return;
  }
  for (int64_t c = 0; c < width; ++c) y[c] = add_it ? store<U>(load(y[c]) + load(entry[c])) : store<U>(load(entry[c]));
}

// The gradient of table rows [begin, end) and columns [left, right).
template <class T>
void table_block(Wide<T>* grad, bool add_it, const T* y_grad, const int32_t* indices, int64_t first, int64_t rows,
                 int64_t width, int64_t begin, int64_t end, int64_t left, int64_t right) {
  using W = Wide<T>;
  const int64_t columns = right - left;
  W* sums = static_cast<W*>(scratch());
  std::fill(sums, sums + (end - begin) * columns, W{0});
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t entry = indices[r] - first;
    if (entry < begin || entry >= end) continue;
    W* sum = sums + (entry - begin) * columns;
    const T* term = y_grad + r * width + left;
    for (int64_t c = 0; c < columns; ++c) sum[c] += load(term[c]);
  }
  for (int64_t entry = begin; entry < end; ++entry)
    for (int64_t c = 0; c < columns; ++c) {
      W& to = grad[entry * width + left + c];
      const W sum = sums[(entry - begin) * columns + c];
      to = add_it ? to + sum : sum;
    }
}

template <class T>
void turn_row(T* x, int64_t position, int64_t heads, int64_t head_width, bool inverse) {
  using W = Wide<T>;
  const int64_t half = head_width / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) *
                         std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_width));
    const W cosine = static_cast<W>(std::cos(angle)),
            sine = static_cast<W>(inverse ? -std::sin(angle) : std::sin(angle));
    for (int64_t h = 0; h < heads; ++h) {
      T &low = x[h * head_width + i], &high = x[h * head_width + half + i];
      const W a = load(low), b = load(high);
      low = store<T>(a * cosine - b * sine);
      high = store<T>(b * cosine + a * sine);
    }
  }
}

}  // namespace

void embedding_forward(cudaStream_t stream, Into y, View table, const int32_t* indices, int64_t first, int64_t count,
                       int64_t rows, int64_t width) {
  expect(y.view.dtype == table.dtype && y.view.size >= rows * width && table.size >= count * width, "embedding_forward",
         "y[rows, width] and table[count, width] of one type");
  launch(stream, [=] {
    with_type(table.dtype, [&](auto type) {
      using T = decltype(type);
      for_pieces(rows, kRows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t entry = indices[r] - first;
          const bool here = entry >= 0 && entry < count;
          embed_row<T, T>(data_of<T>(y.view) + r * width, y.add, here ? data_of<T>(table) + entry * width : nullptr,
                          width);
        }
      });
    });
  });
}

void embedding_backward(cudaStream_t stream, Into table_grad, View y_grad, const int32_t* indices, int64_t first,
                        int64_t count, int64_t rows, int64_t width) {
  expect(table_grad.view.dtype == wide(y_grad.dtype) && table_grad.view.size >= count * width &&
             y_grad.size >= rows * width,
         "embedding_backward", "table_grad[count, width], wide, and y_grad[rows, width]");
  launch(stream, [=] {
    with_type(y_grad.dtype, [&](auto type) {
      using T = decltype(type);
      const int64_t across = (width + kTableColumns - 1) / kTableColumns;
      for_blocks((count + kTableRows - 1) / kTableRows * across, [&](int64_t block) {
        const int64_t begin = block / across * kTableRows, left = block % across * kTableColumns;
        table_block(data_of<Wide<T>>(table_grad.view), table_grad.add, data_of<T>(y_grad), indices, first, rows, width,
                    begin, std::min(count, begin + kTableRows), left, std::min(width, left + kTableColumns));
      });
    });
  });
}

void rotary(cudaStream_t stream, View x, const int32_t* positions, int64_t rows, int64_t stride, int64_t heads,
            int64_t head_width, bool inverse) {
  expect(head_width % 2 == 0 && heads * head_width <= stride &&
             (rows == 0 || x.size >= (rows - 1) * stride + heads * head_width),
         "rotary", "x[rows, stride] with an even head width and heads that fit in a row");
  launch(stream, [=] {
    with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      for_pieces(rows, kRows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          turn_row(data_of<T>(x) + r * stride, positions[r], heads, head_width, inverse);
      });
    });
  });
}

}  // namespace train
