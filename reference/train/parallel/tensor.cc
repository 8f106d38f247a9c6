// SPDX-License-Identifier: MIT

#include "reference/train/parallel/tensor.h"

#include "reference/train/kernels/kernels.h"
#include "reference/train/parallel/sequence.h"

namespace train {

View enter_region(const Groups& groups, const Stream& stream, View x, Arena& arena) {
  return groups.sequence ? gather_rows(groups.tp, stream, x, arena) : x;
}

View enter_region_backward(const Groups& groups, const Stream& stream, View x_grad, Arena& arena) {
  if (groups.sequence) return scatter_rows(groups.tp, stream, x_grad, arena);
  groups.tp.all_reduce(x_grad, ncclSum, stream);
  return x_grad;
}

View leave_region(const Groups& groups, const Stream& stream, View y, Arena& arena) {
  if (groups.sequence) return scatter_rows(groups.tp, stream, y, arena);
  groups.tp.all_reduce(y, ncclSum, stream);
  return y;
}

View leave_region_backward(const Groups& groups, const Stream& stream, View y_grad, Arena& arena) {
  return groups.sequence ? gather_rows(groups.tp, stream, y_grad, arena) : y_grad;
}

void vocabulary_loss(const Comm& tp, const Stream& stream, View loss, const LossStatistics& statistics, View logits,
                     const int32_t* targets, int64_t rows, const VocabularyPart& part) {
  const auto& [row_max, target_logit, sum_exp] = statistics;
  loss_row_max(stream.get(), row_max, logits, rows, part.columns, part.first, part.classes);
  tp.all_reduce(row_max, ncclMax, stream);
  loss_row_sums(stream.get(), target_logit, sum_exp, logits, row_max, targets, rows, part.columns, part.first,
                part.classes);
  tp.all_reduce(target_logit, ncclSum, stream);  // one rank has the target's logit, the others 0
  tp.all_reduce(sum_exp, ncclSum, stream);
  loss_sum(stream.get(), loss, target_logit, sum_exp, targets, rows);
}

}  // namespace train
