// SPDX-License-Identifier: MIT

#include "reference/train/model/blocks.h"
#include "reference/train/model/regions.h"
#include "reference/train/model/watch.h"

namespace train {

bool drops(const Context& context, const Batch& batch) { return batch.training && context.config.dropout > 0; }

void drop(const Context& context, const Batch& batch, RandomUse use, int64_t layer, View out, View in) {
  const OuterRows rows = outer_rows(context, batch);
  dropout(context.cuda(), out, in, context.random(use, layer), context.config.dropout, batch.samples + rows.begin,
          batch.order + rows.begin, rows.count, context.config.width, 0);
}

View add_to_stream(const Context& context, const Batch& batch, RandomUse use, int64_t layer, View x, View y) {
  const bool attention = use == RandomUse::attention_output_dropout;
  if (drops(context, batch)) drop(context, batch, use, layer, y, y);
  show_rows(context, batch, layer, attention ? "attn" : "mlp", y);
  add(context.cuda(), y, x, y);
  if (!attention) show_rows(context, batch, layer, "", y);
  return y;
}

View add_to_stream_backward(const Context& context, const Batch& batch, RandomUse use, int64_t layer, View grad,
                            Arena& arena) {
  if (!drops(context, batch)) return grad;
  const View y_grad = arena.take(grad.dtype, grad.size);
  drop(context, batch, use, layer, y_grad, grad);
  return y_grad;
}

}  // namespace train
