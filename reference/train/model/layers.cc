// SPDX-License-Identifier: MIT

#include "reference/train/model/layers.h"

#include "reference/train/model/regions.h"

namespace train {

// --- linear ----------------------------------------------------------------------------------------------------------

Linear::Linear(const Parameters& parameters, const std::string& name, bool bias)
    : weight_(parameters[name + ".weight"]), bias_(bias ? &parameters[name + ".bias"] : nullptr) {}

void Linear::list(std::vector<Parameter*>& parameters) const {
  parameters.push_back(&weight_);
  if (bias_ != nullptr) parameters.push_back(bias_);
}

View Linear::forward(const Context& context, View x, Arena& arena) const {
  const View y = arena.take(x.dtype, x.size / inputs() * outputs());
  forward_into(context, y, x);
  return y;
}

void Linear::forward_into(const Context& context, View y, View x) const {
  product(context, y, x, bias_ == nullptr ? View{} : bias_->value);
}

View Linear::forward_rows(const Context& context, View x, Arena& arena) const {
  if (context.tp().size() == 1) return forward(context, x, arena);
  const View partial = brief(context, arena).take(x.dtype, x.size / inputs() * outputs());
  product(context, partial, x, {});
  const View y = leave_rows(context, partial, arena);
  add_bias(context.cuda(), y, bias_->value, y.size / outputs(), outputs());
  return y;
}

void Linear::product(const Context& context, View y, View x, View bias) const {
  linear_forward(context.cuda(), y, x, weight_.value, bias, x.size / inputs(), inputs(), outputs());
}

// x_grad = y_grad w
View Linear::backward_input(const Context& context, View y_grad, Arena& arena) const {
  const View x_grad = arena.take(y_grad.dtype, y_grad.size / outputs() * inputs());
  backward_input_into(context, x_grad, y_grad);
  return x_grad;
}

void Linear::backward_input_into(const Context& context, View x_grad, View y_grad) const {
  linear_backward_input(context.cuda(), {x_grad}, y_grad, weight_.value, y_grad.size / outputs(), inputs(), outputs());
}

// w_grad += y_grad^T x
void Linear::backward_weight(const Context& context, View y_grad, View x) const {
  if (weight_.frozen) return;
  linear_backward_weight(context.cuda(), weight_.gradient(), y_grad, x, x.size / inputs(), inputs(), outputs());
}

// b_grad += sum of the rows of y_grad
void Linear::backward_bias(const Context& context, View y_grad) const {
  if (bias_ == nullptr || bias_->frozen) return;
  bias_backward(context.cuda(), bias_->gradient(), y_grad, y_grad.size / outputs(), outputs());
}

// --- layer norm ------------------------------------------------------------------------------------------------------

Norm::Norm(const Parameters& parameters, const std::string& name)
    : gain_(parameters[name + ".weight"]), bias_(parameters[name + ".bias"]), width_(gain_.global[0]) {}

void Norm::list(std::vector<Parameter*>& parameters) const {
  parameters.push_back(&gain_);
  parameters.push_back(&bias_);
}

View Norm::forward(const Context& context, Saved& saved, View x, Arena& arena) const {
  const int64_t rows = x.size / width_;
  saved = {x, arena.take(wide(x.dtype), rows), arena.take(wide(x.dtype), rows)};
  const View y = arena.take(x.dtype, x.size);
  layernorm_forward(context.cuda(), y, saved.mean, saved.rstd, x, gain_.value, bias_.value, rows, width_);
  return y;
}

void Norm::backward_input(const Context& context, const Saved& saved, Into x_grad, View y_grad) const {
  layernorm_backward_input(context.cuda(), x_grad, y_grad, saved.input, gain_.value, saved.mean, saved.rstd,
                           y_grad.size / width_, width_);
}

View Norm::backward_beside(const Context& context, const Saved& saved, View stream_grad, View y_grad,
                           Arena& arena) const {
  const View x_grad = arena.take(stream_grad.dtype, stream_grad.size);
  copy(context, x_grad, stream_grad);
  backward_input(context, saved, {x_grad, true}, y_grad);
  return x_grad;
}

void Norm::backward_weight(const Context& context, const Saved& saved, View y_grad) const {
  if (gain_.frozen && bias_.frozen) return;
  layernorm_backward_weight(context.cuda(), gradient_of(gain_), gradient_of(bias_), y_grad, saved.input, saved.mean,
                            saved.rstd, y_grad.size / width_, width_);
}

void copy(const Context& context, View to, View from) {
  check(cudaMemcpyAsync(to.data, from.data, from.bytes(), cudaMemcpyDeviceToDevice, context.cuda()), "cudaMemcpyAsync");
}

}  // namespace train
