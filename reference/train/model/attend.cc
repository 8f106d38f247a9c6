// SPDX-License-Identifier: MIT
//
// Attention over this rank's heads: by itself where it has whole sequences, else with the other ranks that have parts
// of them (parallel/context.h).

#include "reference/train/model/regions.h"
#include "reference/train/parallel/context.h"

namespace train {
namespace {

struct Local {
  AttentionShape shape{};
  AttentionRows rows{};
  RandomStream random;
  double dropout = 0;
  int64_t queries, keys;  // columns of qkv that are queries, and that are keys

  Local(const Context& context, const Batch& batch, int64_t layer)
      : random(context.random(RandomUse::attention_dropout, layer)),
        dropout(batch.training ? context.config.dropout : 0) {
    const Heads heads = heads_of(context.config, context.tp().rank(), context.tp().size());
    queries = heads.queries * heads.width;
    keys = heads.keys * heads.width;
    shape = {batch.sequences, batch.length,    batch.length,    heads.queries, heads.keys,
             heads.width,     heads.columns(), heads.columns(), queries,       heads.first_query};
    rows = {batch.order, batch.documents, batch.order, batch.documents, batch.samples};
  }

  ContextAttention split(const Context& context, const Batch& batch) const {
    return {context.groups, context.stream, *context.groups.exchange, batch, shape, random, dropout};
  }
  View q(View qkv) const { return qkv; }
  View k(View qkv) const { return qkv.part(queries, qkv.size - queries); }
  View v(View qkv) const { return qkv.part(queries + keys, qkv.size - queries - keys); }
};

}  // namespace

void attend(const Context& context, const Batch& batch, Attention& a, int64_t layer, Arena& arena) {
  const Local local(context, batch, layer);
  if (context.groups.cp.size() > 1) {
    a.gathered = context_forward(local.split(context, batch), a.mixed, a.lse, local.q(a.qkv), local.k(a.qkv),
                                 local.v(a.qkv), arena);
    return;
  }
  attention_forward(context.cuda(), a.mixed, a.lse, local.q(a.qkv), local.k(a.qkv), local.v(a.qkv), local.shape,
                    local.rows, local.random, local.dropout, false);
}

void attend_backward(const Context& context, const Batch& batch, View qkv_grad, View mixed_grad, const Attention& a,
                     int64_t layer, Arena& arena) {
  const Local local(context, batch, layer);
  if (context.groups.cp.size() > 1)
    return context_backward(local.split(context, batch), local.q(qkv_grad), local.k(qkv_grad), local.v(qkv_grad),
                            mixed_grad, a.mixed, local.q(a.qkv), local.k(a.qkv), local.v(a.qkv), a.lse, a.gathered);
  const View delta = arena.take(a.lse.dtype, a.lse.size);
  attention_delta(context.cuda(), delta, mixed_grad, a.mixed, local.shape);
  attention_backward(context.cuda(), {local.q(qkv_grad)}, {local.k(qkv_grad)}, {local.v(qkv_grad)}, mixed_grad,
                     local.q(a.qkv), local.k(a.qkv), local.v(a.qkv), a.lse, delta, local.shape, local.rows,
                     local.random, local.dropout);
}

}  // namespace train
