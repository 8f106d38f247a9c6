// SPDX-License-Identifier: MIT
//
// Dynamic loss scaling (Micikevicius et al. 2017, 1710.03740, section 3.2): the backward pass begins with a factor that
// lifts small gradients out of the range where a narrow type rounds them to zero, and the gradients are divided by it
// before anything looks at them. A step whose gradients overflow is skipped and the factor halved; after `growth` steps
// without an overflow it is doubled, so that it stays near the largest one that fits.

#pragma once

#include <cstdint>

namespace train {

// All there is to save.
struct LossScaleState {
  double scale = 1;
  int64_t good = 0;  // steps without overflow since it last changed
  bool operator==(const LossScaleState&) const = default;
};

class LossScale {
 public:
  // A `first` of 1 or less is a constant. Growth 0: it never grows.
  LossScale(double first, int64_t growth) : dynamic_(first > 1), growth_(growth), state_{first, 0} {}

  double value() const { return state_.scale; }
  void finish_step(bool finite);  // whether the step's gradients were

  const LossScaleState& state() const { return state_; }
  void restore(const LossScaleState& state) { state_ = state; }

 private:
  const bool dynamic_;
  const int64_t growth_;
  LossScaleState state_;
};

}  // namespace train
