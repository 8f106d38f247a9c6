// SPDX-License-Identifier: MIT
//
// x + dropout(gelu(norm(x) W1 + b1) W2 + b2), the hidden layer four times as wide. Under tensor parallelism a rank has
// some columns of the first product and the same rows of the second.

#include "reference/train/model/blocks.h"
#include "reference/train/model/layers.h"
#include "reference/train/model/regions.h"
#include "reference/train/model/watch.h"

namespace train {
namespace {

class MlpBlock : public Module {
 public:
  MlpBlock(const Context& context, const Parameters& parameters, int64_t layer)
      : context_(context),
        layer_(layer),
        norm_(parameters, layer_parameter(context.config, layer, "ln_2")),
        widen_(parameters, layer_parameter(context.config, layer, "mlp.c_fc")),
        projection_(parameters, layer_parameter(context.config, layer, "mlp.c_proj")) {
    name_ = "h." + std::to_string(layer) + ".mlp";
    norm_.list(parameters_);
    widen_.list(parameters_);
    projection_.list(parameters_);
  }

  View forward(int slot, const Batch& batch, View x, Arena& arena) override {
    Saved& s = saved_[slot];
    s.normed = norm_.forward(context_, s.norm, x, arena);
    show_rows(context_, batch, layer_, "ln_2", s.normed);
    const View whole = enter_columns(context_, s.normed, brief(context_, arena));
    s.hidden = widen_.forward(context_, whole, arena);
    show_outputs(context_, layer_, "mlp.c_fc", s.hidden, widen_.weight());
    s.active = arena.take(s.hidden.dtype, s.hidden.size);
    gelu_forward(context_.cuda(), s.active, s.hidden);
    show_inputs(context_, layer_, "mlp.gelu", s.active, projection_.weight());
    const View y = projection_.forward_rows(context_, s.active, arena);
    show_rows(context_, batch, layer_, "mlp.c_proj", y);
    return add_to_stream(context_, batch, RandomUse::mlp_dropout, layer_, x, y);
  }

  View backward_input(int slot, const Batch& batch, View output_grad, Arena& arena) override {
    return backward(slot, batch, output_grad, arena, [] {});
  }
  View backward(int slot, const Batch& batch, View output_grad, Arena& arena) override {
    const View x_grad = backward(slot, batch, output_grad, arena, [&] { backward_matrices(slot); });
    norm_.backward_weight(context_, saved_[slot].norm, saved_[slot].normed_grad);
    return x_grad;
  }
  void backward_weight(int slot, const Batch&) override {
    backward_matrices(slot);
    norm_.backward_weight(context_, saved_[slot].norm, saved_[slot].normed_grad);
  }

 private:
  // The gradient of the input, and work() beside its sum over ranks.
  template <class Work>
  View backward(int slot, const Batch& batch, View output_grad, Arena& arena, const Work& work) {
    Saved& s = saved_[slot];
    s.y_grad = add_to_stream_backward(context_, batch, RandomUse::mlp_dropout, layer_, output_grad, arena);
    s.y_grad_whole = leave_rows_backward(context_, s.y_grad, arena);
    s.normed_whole = enter_columns_again(context_, s.normed, arena);
    const View active_grad = projection_.backward_input(context_, s.y_grad_whole, arena);
    s.hidden_grad = arena.take(active_grad.dtype, active_grad.size);
    gelu_backward(context_.cuda(), s.hidden_grad, active_grad, s.hidden);
    const View partial = widen_.backward_input(context_, s.hidden_grad, arena);
    join_columns(context_);
    s.normed_grad = enter_columns_backward(context_, partial, arena, work);
    return norm_.backward_beside(context_, s.norm, output_grad, s.normed_grad, arena);
  }

  void backward_matrices(int slot) {
    const Saved& s = saved_[slot];
    projection_.backward_weight(context_, s.y_grad_whole, s.active);
    projection_.backward_bias(context_, s.y_grad);
    widen_.backward_weight(context_, s.hidden_grad, s.normed_whole);
    widen_.backward_bias(context_, s.hidden_grad);
  }

  struct Saved {
    Norm::Saved norm;
    View normed, hidden, active;                                        // [outer, C], [rows, 4 C], [rows, 4 C]
    View y_grad, y_grad_whole, hidden_grad, normed_whole, normed_grad;  // for the second half of the backward pass
  };

  const Context& context_;
  int64_t layer_;
  Norm norm_;
  Linear widen_, projection_;
  Slots<Saved> saved_;
};

}  // namespace

std::unique_ptr<Module> make_mlp(const Context& context, const Parameters& parameters, int64_t layer) {
  return std::make_unique<MlpBlock>(context, parameters, layer);
}

}  // namespace train
