// SPDX-License-Identifier: MIT
//
// Tensor and sequence parallelism by themselves: a pair of linear layers, and the cross entropy over a vocabulary, on
// several ranks against whole kernels on one.

#include "reference/train/parallel/tensor.h"

#include <random>

#include "reference/train/kernels/kernels.h"
#include "reference/train/parallel/sequence.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

constexpr int64_t kRows = 8, kInner = 12, kWidth = 5;

std::vector<double> random_numbers(int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(engine);
  return values;
}

std::vector<double> rows_of(const std::vector<double>& matrix, int64_t columns, int64_t begin, int64_t end) {
  return {matrix.begin() + begin * columns, matrix.begin() + end * columns};
}
std::vector<double> columns_of(const std::vector<double>& matrix, int64_t columns, int64_t begin, int64_t end) {
  std::vector<double> part;
  for (size_t row = 0; row < matrix.size() / static_cast<size_t>(columns); ++row)
    for (int64_t column = begin; column < end; ++column)
      part.push_back(matrix[row * static_cast<size_t>(columns) + static_cast<size_t>(column)]);
  return part;
}

struct Whole {
  std::vector<double> y, x_grad, a_grad, b_grad;
};

// y = gelu(x a^T) b^T with a [inner, width], b [width, inner], as the ranks of `tp` share it. Results of the calling
// rank's part; y and x_grad are its rows.
Whole linear_pair(Groups groups, bool sequence) {
  groups.sequence = sequence;
  Memory memory(groups.tp.rank());
  const Stream stream;
  Arena arena(memory, Purpose::activations);
  const int rank = groups.tp.rank(), size = groups.tp.size();
  const int64_t inner = kInner / size;
  const OuterRows rows = outside_rows(groups, kRows);
  const View a =
      device_view(memory, rows_of(random_numbers(kInner * kWidth, 1), kWidth, rank * inner, (rank + 1) * inner));
  const View b =
      device_view(memory, columns_of(random_numbers(kWidth * kInner, 2), kInner, rank * inner, (rank + 1) * inner));
  const View x_own =
      device_view(memory, rows_of(random_numbers(kRows * kWidth, 3), kWidth, rows.begin, rows.begin + rows.count));
  const View y_grad_own =
      device_view(memory, rows_of(random_numbers(kRows * kWidth, 4), kWidth, rows.begin, rows.begin + rows.count));
  cudaStream_t s = stream.get();
  const auto take = [&](int64_t count) { return arena.take(Dtype::f64, count); };

  View x = enter_region(groups, stream, x_own, arena);
  const View h = take(kRows * inner), g = take(kRows * inner), y_part = take(kRows * kWidth);
  linear_forward(s, h, x, a, {}, kRows, kWidth, inner);
  gelu_forward(s, g, h);
  linear_forward(s, y_part, g, b, {}, kRows, inner, kWidth);
  const View y = leave_region(groups, stream, y_part, arena);

  const View y_grad = leave_region_backward(groups, stream, y_grad_own, arena);
  const View g_grad = take(kRows * inner), h_grad = take(kRows * inner), x_part = take(kRows * kWidth);
  linear_backward_input(s, {g_grad}, y_grad, b, kRows, inner, kWidth);
  gelu_backward(s, h_grad, g_grad, h);
  linear_backward_input(s, {x_part}, h_grad, a, kRows, kWidth, inner);
  const View x_grad = enter_region_backward(groups, stream, x_part, arena);
  const View a_grad = take(inner * kWidth), b_grad = take(kWidth * inner);
  x = enter_region(groups, stream, x_own, arena);  // gathered again
  linear_backward_weight(s, {a_grad}, h_grad, x, kRows, kWidth, inner);
  linear_backward_weight(s, {b_grad}, y_grad, g, kRows, inner, kWidth);
  return {numbers(stream, y), numbers(stream, x_grad), numbers(stream, a_grad), numbers(stream, b_grad)};
}

class TensorParallel : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  static void SetUpTestSuite() { set_devices(4); }
};

TEST_P(TensorParallel, APairOfLinearLayersEqualsTheWholeOnes) {
  const auto [ranks, sequence] = GetParam();
  Whole whole;
  run_as_ranks(1, [&](Comm) { whole = linear_pair({}, false); });
  std::vector<Whole> parts(static_cast<size_t>(ranks));
  run_as_ranks(ranks, [&, split = sequence](Comm comm) {
    Groups groups;
    groups.tp = std::move(comm);
    const auto rank = static_cast<size_t>(groups.tp.rank());
    parts[rank] = linear_pair(std::move(groups), split);
  });
  const int64_t inner = kInner / ranks, rows = sequence ? kRows / ranks : kRows;
  for (int rank = 0; rank < ranks; ++rank) {
    const Whole& part = parts[static_cast<size_t>(rank)];
    const int64_t first = sequence ? rank * rows : 0;
    EXPECT_LT(distance(part.y, rows_of(whole.y, kWidth, first, first + rows)), 1e-14);
    EXPECT_LT(distance(part.x_grad, rows_of(whole.x_grad, kWidth, first, first + rows)), 1e-14);
    EXPECT_LT(distance(part.a_grad, rows_of(whole.a_grad, kWidth, rank * inner, (rank + 1) * inner)), 1e-14);
    EXPECT_LT(distance(part.b_grad, columns_of(whole.b_grad, kInner, rank * inner, (rank + 1) * inner)), 1e-14);
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, TensorParallel, testing::Combine(testing::Values(2, 4), testing::Bool()));

struct Loss {
  double loss;
  std::vector<double> logits_grad;
};
constexpr int64_t kPadded = 16, kClasses = 13;

Loss vocabulary(const Comm& tp) {
  Memory memory(tp.rank());
  const Stream stream;
  const int64_t columns = kPadded / tp.size();
  const VocabularyPart part{tp.rank() * columns, columns, kClasses};
  const View logits =
      device_view(memory, columns_of(random_numbers(kRows * kPadded, 5), kPadded, part.first, part.first + columns));
  const int32_t* targets = device_copy<int32_t>(memory, {0, 3, 12, -1, 7, 4, 11, 5});
  const auto take = [&] { return memory.allocate(Purpose::workspace, Dtype::f64, kRows); };
  const LossStatistics statistics{take(), take(), take()};
  const View loss = memory.allocate(Purpose::workspace, Dtype::f64, 1);
  vocabulary_loss(tp, stream, loss, statistics, logits, targets, kRows, part);
  loss_backward(stream.get(), logits, statistics.row_max, statistics.sum_exp, targets, kRows, columns, part.first,
                kClasses, 2);
  return {numbers(stream, loss)[0], numbers(stream, logits)};
}

TEST(VocabularyParallel, CrossEntropyEqualsTheWholeOne) {
  set_devices(4);
  Loss whole{};
  run_as_ranks(1, [&](const Comm& comm) { whole = vocabulary(comm); });
  EXPECT_GT(whole.loss, 1);
  for (const int ranks : {2, 4})
    run_as_ranks(ranks, [&](const Comm& comm) {
      const Loss part = vocabulary(comm);
      const int64_t columns = kPadded / ranks, first = comm.rank() * columns;
      EXPECT_NEAR(part.loss, whole.loss, 1e-13);
      EXPECT_LT(distance(part.logits_grad, columns_of(whole.logits_grad, kPadded, first, first + columns)), 1e-14);
    });
}

}  // namespace
}  // namespace train
