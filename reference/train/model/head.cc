// SPDX-License-Identifier: MIT
//
// loss = sum over rows with a target of  log(sum_v exp(logit_v)) - logit_target,  logits = norm(x) Wlm^T.
//
// The sum, not the mean: the one division by the number of tokens comes after all sums over micro-batches and ranks.
// Under tensor parallelism a rank has the logits of a part of the vocabulary, and three all-reduces of a number a row
// make the loss of all (1909.08053, section 3): the largest logit, the target's logit, the sum of exponentials. The
// backward pass needs no more of the others, and turns the logits into their gradient where they are.

#include "reference/train/model/blocks.h"
#include "reference/train/model/layers.h"
#include "reference/train/model/regions.h"

namespace train {
namespace {

class Head : public Module {
 public:
  Head(const Context& context, const Parameters& parameters)
      : context_(context),
        norm_(parameters, "transformer.ln_f"),
        table_(parameters[context.config.tied ? "transformer.wte.weight" : "lm_head.weight"]),
        linear_(parameters, context.config.tied ? "transformer.wte" : "lm_head", false) {
    name_ = "head";
    norm_.list(parameters_);
    linear_.list(parameters_);
  }

  View forward(int slot, const Batch& batch, View x, Arena& arena) override {
    Saved& s = saved_[slot];
    const View normed = norm_.forward(context_, s.norm, x, arena);
    s.normed = enter_columns(context_, normed, arena);
    s.logits = linear_.forward(context_, s.normed, arena);
    const Dtype statistics = wide(x.dtype);
    const int64_t rows = batch.rows();
    s.row_max = arena.take(statistics, rows);
    s.sum_exp = arena.take(statistics, rows);
    const View target_logit = arena.take(statistics, rows);
    loss_row_max(context_.cuda(), s.row_max, s.logits, rows, columns(), first(), context_.config.vocab);
    max_over_vocabulary(context_, s.row_max);
    loss_row_sums(context_.cuda(), target_logit, s.sum_exp, s.logits, s.row_max, batch.targets, rows, columns(),
                  first(), context_.config.vocab);
    sum_over_vocabulary(context_, target_logit);
    sum_over_vocabulary(context_, s.sum_exp);
    loss_sum(context_.cuda(), context_.loss, target_logit, s.sum_exp, batch.targets, rows);
    return {};
  }

  View backward_input(int slot, const Batch& batch, View, Arena& arena) override {
    Saved& s = saved_[slot];
    loss_backward(context_.cuda(), s.logits, s.row_max, s.sum_exp, batch.targets, batch.rows(), columns(), first(),
                  context_.config.vocab, context_.loss_scale);
    const View partial = linear_.backward_input(context_, s.logits, arena);
    s.normed_grad = enter_columns_backward(context_, partial, arena);
    const View x_grad = arena.take(s.normed_grad.dtype, s.normed_grad.size);
    norm_.backward_input(context_, s.norm, {x_grad}, s.normed_grad);
    return x_grad;
  }

  void backward_weight(int slot, const Batch&) override {
    const Saved& s = saved_[slot];
    linear_.backward_weight(context_, s.logits, s.normed);
    norm_.backward_weight(context_, s.norm, s.normed_grad);
  }

 private:
  struct Saved {
    Norm::Saved norm;
    View normed, logits;    // [rows, C], [rows, V / tp]: the logits' gradient after the first half of the backward pass
    View row_max, sum_exp;  // [rows]
    View normed_grad;
  };
  int64_t columns() const { return linear_.outputs(); }
  int64_t first() const { return table_.cut.empty() ? 0 : table_.cut[0][0]; }

  const Context& context_;
  Norm norm_;
  const Parameter& table_;
  Linear linear_;
  Slots<Saved> saved_;
};

}  // namespace

std::unique_ptr<Module> make_head(const Context& context, const Parameters& parameters) {
  return std::make_unique<Head>(context, parameters);
}

}  // namespace train
