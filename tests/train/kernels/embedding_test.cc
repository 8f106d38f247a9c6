// SPDX-License-Identifier: MIT

#include <cmath>

#include "tests/train/kernels/harness.h"

namespace train::test {
namespace {

using Embedding = KernelTest;
LOCKSTEP_ALL_TYPES(Embedding);

struct Size {
  int64_t first, count, rows, width;
};
const Size kSizes[] = {{0, 5, 0, 3}, {0, 1, 1, 1}, {0, 40, 90, 33}, {10, 33, 70, 515}, {64, 3, 130, 16}};

TEST_P(Embedding, ReadsAndSumsRowsOfTheTable) {
  for (const Size& size : kSizes)
    for (const bool add : {false, true}) {
      const int64_t rows = size.rows, width = size.width, count = size.count, first = size.first;
      std::vector<int32_t> indices;
      for (int64_t r = 0; r < rows; ++r) indices.push_back(static_cast<int32_t>(below(80)));
      const Values table = normal(count * width), before = normal(rows * width), g = normal(rows * width);
      const Values table_before = normal(count * width);
      Values wanted(static_cast<size_t>(rows * width)), grad(static_cast<size_t>(count * width));
      if (add) wanted = before, grad = table_before;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t entry = indices[static_cast<size_t>(r)] - first;
        if (entry < 0 || entry >= count) continue;
        for (int64_t c = 0; c < width; ++c) {
          wanted[static_cast<size_t>(r * width + c)] += table[static_cast<size_t>(entry * width + c)];
          grad[static_cast<size_t>(entry * width + c)] += g[static_cast<size_t>(r * width + c)];
        }
      }
      const auto got = run([&] {
        const View y = add ? put(before) : room(rows * width);
        const View table_grad = add ? put(table_before, wide(type())) : room(count * width, wide(type()));
        embedding_forward(stream(), {y, add}, put(table), put_indices(indices), first, count, rows, width);
        embedding_backward(stream(), {table_grad, add}, put(g), put_indices(indices), first, count, rows, width);
        return std::vector<View>{y, table_grad};
      });
      expect_close(got[0], wanted, type(), add ? 1 : 0);
      expect_close(got[1], grad, wide(type()), static_cast<double>(rows) + 1, 1);
    }
}

TEST_P(Embedding, RotaryTurnsPairs) {
  const int64_t rows = 70, heads = 3, width = 6, stride = 25;
  const Values x = normal(rows * stride);
  std::vector<int32_t> positions;
  for (int64_t r = 0; r < rows; ++r) positions.push_back(static_cast<int32_t>(r * 37 % 1000));
  Values wanted = x;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < width / 2; ++i) {
        const auto low = static_cast<size_t>(r * stride + h * width + i), high = low + static_cast<size_t>(width / 2);
        const double angle = positions[static_cast<size_t>(r)] *
                             std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(width));
        wanted[low] = x[low] * std::cos(angle) - x[high] * std::sin(angle);
        wanted[high] = x[high] * std::cos(angle) + x[low] * std::sin(angle);
      }
  const auto got = run([&] {
    const View turned = put(x), back = put(x);
    rotary(stream(), turned, put_indices(positions), rows, stride, heads, width, false);
    rotary(stream(), back, put_indices(positions), rows, stride, heads, width, false);
    rotary(stream(), back, put_indices(positions), rows, stride, heads, width, true);
    return std::vector<View>{turned, back};
  });
  expect_close(got[0], wanted, type(), 3, 1);
  expect_close(got[1], x, type(), 6, 1);
}

}  // namespace
}  // namespace train::test
