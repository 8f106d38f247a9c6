// SPDX-License-Identifier: MIT
//
// x = dropout(wte[token] + wpe[position]); without wpe where positions are rotary. Each tensor-parallel rank has a part
// of the vocabulary and gives zero for tokens of others, so that the sum over ranks is the look-up (1909.08053, section
// 3). Nothing but the batch is needed for the backward pass.

#include "reference/train/model/blocks.h"
#include "reference/train/model/layers.h"
#include "reference/train/model/regions.h"
#include "reference/train/model/watch.h"

namespace train {
namespace {

class Embedding : public Module {
 public:
  Embedding(const Context& context, const Parameters& parameters)
      : context_(context), tokens_(parameters["transformer.wte.weight"]) {
    name_ = "embedding";
    parameters_ = {&tokens_};
    if (context.config.positions == Positions::learned) {
      positions_ = &parameters["transformer.wpe.weight"];
      parameters_.push_back(positions_);
    }
  }

  View forward(int slot, const Batch& batch, View, Arena& arena) override {
    const OuterRows outer = outer_rows(context_, batch);
    const View partial = brief(context_, arena).take(context_.config.dtype, batch.rows() * width());
    embedding_forward(context_.cuda(), {partial}, tokens_.value, batch.tokens, first(), tokens_.local[0], batch.rows(),
                      width());
    const View x = leave_rows(context_, partial, arena);
    if (positions_ != nullptr)
      embedding_forward(context_.cuda(), {x, true}, positions_->value, batch.positions + outer.begin, 0,
                        positions_->local[0], outer.count, width());
    if (drops(context_, batch)) drop(context_, batch, RandomUse::embedding_dropout, 0, x, x);
    show_rows(context_, batch, -1, "transformer.drop", x);
    return x;
  }

  View backward_input(int slot, const Batch& batch, View output_grad, Arena& arena) override {
    Saved& s = saved_[slot];
    s.grad = output_grad;
    if (drops(context_, batch)) {
      s.grad = arena.take(output_grad.dtype, output_grad.size);
      drop(context_, batch, RandomUse::embedding_dropout, 0, s.grad, output_grad);
    }
    s.whole_grad = leave_rows_backward(context_, s.grad, arena);
    return {};  // tokens have no gradient
  }

  void backward_weight(int slot, const Batch& batch) override {
    const Saved& s = saved_[slot];
    const OuterRows outer = outer_rows(context_, batch);
    if (!tokens_.frozen)
      embedding_backward(context_.cuda(), tokens_.gradient(), s.whole_grad, batch.tokens, first(), tokens_.local[0],
                         batch.rows(), width());
    if (positions_ != nullptr && !positions_->frozen)
      embedding_backward(context_.cuda(), positions_->gradient(), s.grad, batch.positions + outer.begin, 0,
                         positions_->local[0], outer.count, width());
  }

 private:
  struct Saved {
    View grad, whole_grad;  // [outer, C], [rows, C]
  };
  int64_t width() const { return context_.config.width; }
  int64_t first() const { return tokens_.cut.empty() ? 0 : tokens_.cut[0][0]; }

  const Context& context_;
  Parameter& tokens_;
  Parameter* positions_ = nullptr;
  Slots<Saved> saved_;
};

}  // namespace

std::unique_ptr<Module> make_embedding(const Context& context, const Parameters& parameters) {
  return std::make_unique<Embedding>(context, parameters);
}

}  // namespace train
