// SPDX-License-Identifier: MIT

#include "reference/train/run/loss_scale.h"

#include <algorithm>

namespace train {

void LossScale::finish_step(bool finite) {
  constexpr double kLeast = 1, kMost = 1 << 24;  // gradients that are zero would let it grow without end
  if (!dynamic_) return;
  if (!finite) {
    state_ = {std::max(state_.scale / 2, kLeast), 0};
  } else if (++state_.good == growth_) {
    state_ = {std::max(state_.scale, std::min(state_.scale * 2, kMost)), 0};
  }
}

}  // namespace train
