// SPDX-License-Identifier: MIT

#include <cmath>
#include <limits>

#include "tests/train/kernels/harness.h"

namespace train::test {
namespace {

using Loss = KernelTest;
LOCKSTEP_ALL_TYPES(Loss);

struct Size {
  int64_t rows, columns, classes;
};
const Size kSizes[] = {{0, 4, 4}, {1, 1, 1}, {33, 7, 5}, {20, 256, 256}, {17, 130, 101}};

std::vector<int32_t> targets_of(int64_t rows, int64_t classes) {
  std::vector<int32_t> targets;
  for (int64_t r = 0; r < rows; ++r) targets.push_back(r % 4 == 3 ? -1 : static_cast<int32_t>(r * 31 % classes));
  return targets;
}

double loss_of(const Values& logits, const std::vector<int32_t>& targets, const Size& size) {
  double loss = 0;
  for (int64_t r = 0; r < size.rows; ++r) {
    if (targets[static_cast<size_t>(r)] < 0) continue;
    double sum = 0;
    for (int64_t c = 0; c < size.classes; ++c) sum += std::exp(logits[static_cast<size_t>(r * size.columns + c)]);
    loss += std::log(sum) - logits[static_cast<size_t>(r * size.columns + targets[static_cast<size_t>(r)])];
  }
  return loss;
}

TEST_P(Loss, IsTheCrossEntropyAndItsSlope) {
  for (const Size& size : kSizes) {
    const auto [rows, columns, classes] = size;
    const int64_t n = rows, w = columns, k = classes;
    Values logits = normal(n * w, 2);
    const std::vector<int32_t> targets = targets_of(n, k);
    const double wanted = loss_of(logits, targets, size), factor = 0.5;
    Values slope(logits.size());
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < k && targets[static_cast<size_t>(r)] >= 0; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += std::exp(logits[static_cast<size_t>(r * w + i)]);
        const double p = std::exp(logits[static_cast<size_t>(r * w + c)]) / sum;
        slope[static_cast<size_t>(r * w + c)] = factor * (p - (c == targets[static_cast<size_t>(r)] ? 1 : 0));
      }
    const auto got = run([&] {
      const View in = put(logits), row_max = room(n, wide(type())), target = room(n, wide(type())),
                 sums = room(n, wide(type())), loss = put({10.0}, Dtype::f64);
      const int32_t* at = put_indices(targets);
      loss_row_max(stream(), row_max, in, n, w, 0, k);
      loss_row_sums(stream(), target, sums, in, row_max, at, n, w, 0, k);
      loss_sum(stream(), loss, target, sums, at, n);
      loss_backward(stream(), in, row_max, sums, at, n, w, 0, k, factor);
      return std::vector<View>{in, loss};
    });
    expect_close(got[0], slope, type(), type() == Dtype::bf16 ? 1.1 : 60, 1);
    expect_close(got[1], {wanted + 10}, wide(type()), 60 + static_cast<double>(n), 1);
    if (type() != Dtype::f64 || n * w > 400) continue;
    for (size_t i = 0; i < logits.size(); ++i) {  // the formula above is the slope of the loss
      const double kept = logits[i], h = 1e-5;
      logits[i] = kept + h;
      const double up = loss_of(logits, targets, size);
      logits[i] = kept - h;
      const double down = loss_of(logits, targets, size);
      logits[i] = kept;
      EXPECT_NEAR(factor * (up - down) / (2 * h), slope[i], 1e-8);
    }
  }
}

// A vocabulary over three ranks, padded at its end: maxima, sums and gradients of the parts are those of the whole.
TEST_P(Loss, OfASplitVocabularyIsThatOfTheWhole) {
  const int64_t rows = 21, part = 40, parts = 3, classes = 101;
  const Values logits = normal(rows * part * parts, 2);
  const std::vector<int32_t> targets = targets_of(rows, classes);
  const auto cut = [&](int64_t rank) {
    Values mine;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < part; ++c)
        mine.push_back(logits[static_cast<size_t>(r * part * parts + rank * part + c)]);
    return mine;
  };
  const View in = put(logits), row_max = room(rows, wide(type())), target = room(rows, wide(type())),
             sums = room(rows, wide(type()));
  const int32_t* at = put_indices(targets);
  loss_row_max(stream(), row_max, in, rows, part * parts, 0, classes);
  loss_row_sums(stream(), target, sums, in, row_max, at, rows, part * parts, 0, classes);
  check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  Values largest(static_cast<size_t>(rows), -std::numeric_limits<double>::infinity()),
      target_sum(static_cast<size_t>(rows)), exp_sum(static_cast<size_t>(rows));
  for (int64_t rank = 0; rank < parts; ++rank) {
    const View mine = room(rows, wide(type()));
    loss_row_max(stream(), mine, put(cut(rank)), rows, part, rank * part, classes);
    check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    const Values values = get(mine);
    for (size_t r = 0; r < values.size(); ++r) largest[r] = std::max(largest[r], values[r]);
  }
  EXPECT_EQ(largest, get(row_max));
  for (int64_t rank = 0; rank < parts; ++rank) {
    const View my_target = room(rows, wide(type())), my_sums = room(rows, wide(type()));
    loss_row_sums(stream(), my_target, my_sums, put(cut(rank)), row_max, at, rows, part, rank * part, classes);
    check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    const Values t = get(my_target), s = get(my_sums);
    for (size_t r = 0; r < t.size(); ++r) target_sum[r] += t[r], exp_sum[r] += s[r];
  }
  EXPECT_EQ(target_sum, get(target));
  expect_close(exp_sum, get(sums), wide(type()), 100);
  loss_backward(stream(), in, row_max, sums, at, rows, part * parts, 0, classes, 3);
  check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  const Values whole = get(in);
  for (int64_t rank = 0; rank < parts; ++rank) {
    const View mine = put(cut(rank));
    loss_backward(stream(), mine, row_max, sums, at, rows, part, rank * part, classes, 3);
    check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    const Values values = get(mine);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < part; ++c)
        EXPECT_EQ(values[static_cast<size_t>(r * part + c)],
                  whole[static_cast<size_t>(r * part * parts + rank * part + c)]);
  }
}

}  // namespace
}  // namespace train::test
