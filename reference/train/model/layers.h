// SPDX-License-Identifier: MIT
//
// The two layers with parameters that every module is made of: forward, the gradient of the input, the gradients of the
// parameters. A frozen parameter gets none.

#pragma once

#include "reference/train/model/context.h"
#include "reference/train/model/parameters.h"

namespace train {

// y = x w^T + b. Sizes are those of this rank's part.
class Linear {
 public:
  // `name` without ".weight". A head has no bias.
  Linear(const Parameters& parameters, const std::string& name, bool bias = true);

  int64_t inputs() const { return weight_.local[1]; }
  int64_t outputs() const { return weight_.local[0]; }
  const Parameter& weight() const { return weight_; }

  View forward(const Context& context, View x, Arena& arena) const;
  void forward_into(const Context& context, View y, View x) const;
  // A row-parallel layer: x is this rank's part of the inputs [rows, inputs], the result [outer rows, outputs] the sum
  // over ranks, to which the bias is added once.
  View forward_rows(const Context& context, View x, Arena& arena) const;

  View backward_input(const Context& context, View y_grad, Arena& arena) const;
  void backward_input_into(const Context& context, View x_grad, View y_grad) const;
  void backward_weight(const Context& context, View y_grad, View x) const;
  void backward_bias(const Context& context, View y_grad) const;

  void list(std::vector<Parameter*>& parameters) const;

 private:
  void product(const Context& context, View y, View x, View bias) const;

  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

// y = (x - mean) rstd * gain + bias over each row (1607.06450).
class Norm {
 public:
  struct Saved {
    View input, mean, rstd;
  };
  Norm(const Parameters& parameters, const std::string& name);

  View forward(const Context& context, Saved& saved, View x, Arena& arena) const;
  // The gradient of x: added to what is in `x_grad` already, or written there.
  void backward_input(const Context& context, const Saved& saved, Into x_grad, View y_grad) const;
  // The gradient of x where x also goes past everything, in the residual stream: `stream_grad` plus what comes by y.
  View backward_beside(const Context& context, const Saved& saved, View stream_grad, View y_grad, Arena& arena) const;
  void backward_weight(const Context& context, const Saved& saved, View y_grad) const;

  void list(std::vector<Parameter*>& parameters) const;

 private:
  Parameter &gain_, &bias_;
  int64_t width_;
};

// Where a parameter's gradient goes; empty where it has none.
inline Into gradient_of(Parameter& parameter) { return parameter.frozen ? Into{} : parameter.gradient(); }

void copy(const Context& context, View to, View from);

}  // namespace train
