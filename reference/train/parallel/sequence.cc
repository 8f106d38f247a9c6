// SPDX-License-Identifier: MIT

#include "reference/train/parallel/sequence.h"

namespace train {

View gather_rows(const Comm& tp, const Stream& stream, View part, Arena& arena) {
  if (tp.size() == 1) return part;
  const View whole = arena.take(part.dtype, part.size * tp.size());
  tp.all_gather(part, whole, stream);
  return whole;
}

View scatter_rows(const Comm& tp, const Stream& stream, View sum, Arena& arena) {
  if (tp.size() == 1) return sum;
  const View part = arena.take(sum.dtype, sum.size / tp.size());
  tp.reduce_scatter(sum, part, ncclSum, stream);
  return part;
}

OuterRows outside_rows(const Groups& groups, int64_t rows) {
  if (!groups.sequence || groups.tp.size() == 1) return {0, rows};
  const int64_t count = rows / groups.tp.size();
  return {groups.tp.rank() * count, count};
}

}  // namespace train
