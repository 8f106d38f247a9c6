// SPDX-License-Identifier: MIT
//
// x + dropout(attend(norm(x) Wqkv + bqkv) Wproj + bproj). Queries, keys and values of a token stand side by side, as
// nanoGPT's c_attn makes them; under tensor parallelism a rank has some of the heads: columns of the first product,
// rows of the second.

#include "reference/train/model/blocks.h"
#include "reference/train/model/layers.h"
#include "reference/train/model/regions.h"
#include "reference/train/model/watch.h"

namespace train {
namespace {

class AttentionBlock : public Module {
 public:
  AttentionBlock(const Context& context, const Parameters& parameters, int64_t layer)
      : context_(context),
        layer_(layer),
        heads_(heads_of(context.config, context.tp().rank(), context.tp().size())),
        norm_(parameters, layer_parameter(context.config, layer, "ln_1")),
        qkv_(parameters, layer_parameter(context.config, layer, "attn.c_attn")),
        projection_(parameters, layer_parameter(context.config, layer, "attn.c_proj")) {
    name_ = "h." + std::to_string(layer) + ".attn";
    norm_.list(parameters_);
    qkv_.list(parameters_);
    projection_.list(parameters_);
  }

  View forward(int slot, const Batch& batch, View x, Arena& arena) override {
    Saved& s = saved_[slot];
    s.normed = norm_.forward(context_, s.norm, x, arena);
    show_rows(context_, batch, layer_, "ln_1", s.normed);
    const View whole = enter_columns(context_, s.normed, brief(context_, arena));
    s.attention.qkv = qkv_.forward(context_, whole, arena);
    show_outputs(context_, layer_, "attn.c_attn", s.attention.qkv, qkv_.weight());
    turn(batch, s.attention.qkv, false);
    s.attention.mixed = arena.take(x.dtype, batch.rows() * heads_.queries * heads_.width);
    s.attention.lse = arena.take(wide(x.dtype), batch.rows() * heads_.queries);
    attend(context_, batch, s.attention, layer_, arena);
    show_inputs(context_, layer_, "attn.heads", s.attention.mixed, projection_.weight());
    const View y = projection_.forward_rows(context_, s.attention.mixed, arena);
    show_rows(context_, batch, layer_, "attn.c_proj", y);
    return add_to_stream(context_, batch, RandomUse::attention_output_dropout, layer_, x, y);
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
    s.y_grad = add_to_stream_backward(context_, batch, RandomUse::attention_output_dropout, layer_, output_grad, arena);
    s.y_grad_whole = leave_rows_backward(context_, s.y_grad, arena);
    s.normed_whole = enter_columns_again(context_, s.normed, arena);
    const View mixed_grad = projection_.backward_input(context_, s.y_grad_whole, arena);
    s.qkv_grad = arena.take(mixed_grad.dtype, batch.rows() * heads_.columns());
    attend_backward(context_, batch, s.qkv_grad, mixed_grad, s.attention, layer_, arena);
    turn(batch, s.qkv_grad, true);
    const View partial = qkv_.backward_input(context_, s.qkv_grad, arena);
    join_columns(context_);
    s.normed_grad = enter_columns_backward(context_, partial, arena, work);
    return norm_.backward_beside(context_, s.norm, output_grad, s.normed_grad, arena);
  }

  void backward_matrices(int slot) {
    const Saved& s = saved_[slot];
    projection_.backward_weight(context_, s.y_grad_whole, s.attention.mixed);
    projection_.backward_bias(context_, s.y_grad);
    qkv_.backward_weight(context_, s.qkv_grad, s.normed_whole);
    qkv_.backward_bias(context_, s.qkv_grad);
  }

  struct Saved {
    Norm::Saved norm;
    View normed;                          // [outer, C]
    Attention attention;                  // [rows, (Q + 2 K) d], [rows, Q d], [rows, Q]
    View y_grad, y_grad_whole, qkv_grad;  // from the first half of the backward pass for the second
    View normed_whole, normed_grad;
  };

  // Queries and keys stand side by side, so one call turns both.
  void turn(const Batch& batch, View qkv, bool inverse) const {
    if (context_.config.positions != Positions::rotary) return;
    rotary(context_.cuda(), qkv, batch.positions, batch.rows(), heads_.columns(), heads_.queries + heads_.keys,
           heads_.width, inverse);
  }

  const Context& context_;
  int64_t layer_;
  Heads heads_;
  Norm norm_;
  Linear qkv_, projection_;
  Slots<Saved> saved_;
};

}  // namespace

std::unique_ptr<Module> make_attention(const Context& context, const Parameters& parameters, int64_t layer) {
  return std::make_unique<AttentionBlock>(context, parameters, layer);
}

}  // namespace train
