// SPDX-License-Identifier: MIT

#include "reference/train/parallel/model_gradients.h"

namespace train {

void finish_model_gradients(const std::vector<Owned>& owned, const Groups& groups, const Stream& stream) {
  if (groups.tp.size() == 1) return;
  const Group together;
  for (const Owned& piece : owned) {
    if (piece.parameter->partial_over_tp) groups.tp.all_reduce(piece.grad, ncclSum, stream);
    for (const auto& [begin, end] : overlap(piece.begin, piece.count, piece.parameter->partial_over_kv))
      groups.kv.all_reduce(piece.grad.part(begin, end - begin), ncclSum, stream);
  }
}

}  // namespace train
