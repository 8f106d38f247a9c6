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
#include "reference/train/model/watch.h"

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
    s.normed = norm_.forward(context_, s.norm, x, arena);
    show_rows(context_, batch, -1, "transformer.ln_f", s.normed);
    const View whole = enter_columns(context_, s.normed, brief(context_, arena));
    s.logits = linear_.forward(context_, whole, arena);
    show_outputs(context_, -1, "lm_head", s.logits, linear_.weight());
    const Dtype statistics = wide(x.dtype);
    const int64_t rows = batch.rows();
    s.row_max = arena.take(statistics, rows);
    s.sum_exp = arena.take(statistics, rows);
    const View target_logit = arena.take(statistics, rows);
    vocabulary_loss(context_.tp(), context_.stream, context_.loss, {s.row_max, target_logit, s.sum_exp}, s.logits,
                    batch.targets, rows, {first(), columns(), context_.config.vocab});
    return {};
  }

  View backward_input(int slot, const Batch& batch, View, Arena& arena) override {
    return backward(slot, batch, arena, [] {});
  }
  View backward(int slot, const Batch& batch, View, Arena& arena) override {
    const View x_grad = backward(slot, batch, arena, [&] { backward_table(slot); });
    norm_.backward_weight(context_, saved_[slot].norm, saved_[slot].normed_grad);
    return x_grad;
  }
  void backward_weight(int slot, const Batch&) override {
    backward_table(slot);
    norm_.backward_weight(context_, saved_[slot].norm, saved_[slot].normed_grad);
  }

 private:
  // The gradient of the input, and work() beside its sum over ranks.
  template <class Work>
  View backward(int slot, const Batch& batch, Arena& arena, const Work& work) {
    Saved& s = saved_[slot];
    s.normed_whole = enter_columns_again(context_, s.normed, arena);
    loss_backward(context_.cuda(), s.logits, s.row_max, s.sum_exp, batch.targets, batch.rows(), columns(), first(),
                  context_.config.vocab, context_.loss_scale);
    const View partial = linear_.backward_input(context_, s.logits, arena);
    join_columns(context_);
    s.normed_grad = enter_columns_backward(context_, partial, arena, work);
    const View x_grad = arena.take(s.normed_grad.dtype, s.normed_grad.size);
    norm_.backward_input(context_, s.norm, {x_grad}, s.normed_grad);
    return x_grad;
  }

  void backward_table(int slot) { linear_.backward_weight(context_, saved_[slot].logits, saved_[slot].normed_whole); }

  struct Saved {
    Norm::Saved norm;
    View normed, logits;  // [outer, C], [rows, V / tp]: the logits' gradient after the first half of the backward pass
    View row_max, sum_exp;  // [rows]
    View normed_whole, normed_grad;
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
