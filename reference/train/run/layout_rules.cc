// SPDX-License-Identifier: MIT
//
// What follows from the number of ranks, and which layouts cannot be, each with the equation that fails.

#include <algorithm>

#include "reference/train/run/options.h"

namespace train {
namespace {

void complete_shape(Shape& shape, int world) {
  if (world > kMostRanks) refuse("there are ", world, " ranks, but there can be at most ", kMostRanks);
  const int others = shape.pp * shape.cp * shape.tp;
  if (shape.dp == 0) {
    if (world % others != 0)
      refuse("ranks % (pp x cp x tp) = ", world, " % (", shape.pp, " x ", shape.cp, " x ", shape.tp,
             ") is not 0: no number of data-parallel ranks fits");
    shape.dp = world / others;
  }
  if (shape.world() != world)
    refuse("dp x pp x cp x tp = ", shape.dp, " x ", shape.pp, " x ", shape.cp, " x ", shape.tp, " = ", shape.world(),
           ", but there are ", world, " ranks");
  if ((shape.dp * shape.cp * shape.tp) % shape.ep != 0)
    refuse("(dp x cp x tp) % ep = (", shape.dp, " x ", shape.cp, " x ", shape.tp, ") % ", shape.ep, " is not 0");
}

int64_t sequences_of(const Options& o) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (o.micro_batch * o.accum > kMost / o.shape.dp)
    refuse("global batch = micro-batch x accum x dp = ", o.micro_batch, " x ", o.accum, " x ", o.shape.dp,
           " is more than ", kMost, " sequences: take smaller ones");
  return o.micro_batch * o.accum * o.shape.dp;
}

// global_batch = micro_batch * accum * dp, solved for what was not given.
void complete_batch(Options& o) {
  const int64_t dp = o.shape.dp;
  if (o.global_batch == 0) {
    if (o.micro_batch == 0) o.micro_batch = 8;
    if (o.accum == 0) o.accum = 1;
    o.global_batch = sequences_of(o);
  }
  if (o.micro_batch == 0 && o.accum == 0) o.accum = 1;
  int64_t& unknown = o.micro_batch == 0 ? o.micro_batch : o.accum;
  const int64_t known = (o.micro_batch == 0 ? o.accum : o.micro_batch) * dp;
  if (unknown == 0) {
    if (o.global_batch % known != 0)
      refuse("global batch = micro-batch x accum x dp: ", o.global_batch, " is not a multiple of ",
             &unknown == &o.accum ? "micro-batch x dp = " : "accum x dp = ", known);
    unknown = o.global_batch / known;
  }
  if (o.global_batch != sequences_of(o))
    refuse("global batch = micro-batch x accum x dp: ", o.global_batch, " is not ", o.micro_batch, " x ", o.accum,
           " x ", dp, " = ", o.micro_batch * o.accum * dp);
}

void check_model(Options& o) {
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  const Shape& s = o.shape;
  const auto multiple = [](const char* equation, int64_t a, int64_t b) {
    if (a % b != 0) refuse(equation, " = ", a, " % ", b, " is not 0");
  };
  multiple("width % heads", o.width, o.heads);
  multiple("heads % kv-heads", o.heads, o.kv_heads);
  if (o.positions == "rotary") multiple("(width / heads) % 2 (rotary positions turn pairs)", o.width / o.heads, 2);
  multiple("heads % tp", o.heads, s.tp);
  if (o.kv_heads % s.tp != 0) multiple("tp % kv-heads (or kv-heads % tp)", s.tp, o.kv_heads);
  if (o.layers % (s.pp * o.virtual_stages) != 0)
    refuse("layers % (pp x virtual-stages) = ", o.layers, " % (", s.pp, " x ", o.virtual_stages, ") is not 0");
  if (s.cp > 1) {
    multiple("seq % (2 x cp) (zigzag chunks)", o.seq, 2 * s.cp);
    if (o.cp_algo == "ulysses")
      multiple("(kv-heads / tp) % cp (ulysses splits heads)", std::max(o.kv_heads / s.tp, 1), s.cp);
  }
  if (o.sequence_parallel) {
    if (s.tp == 1) refuse("--sp splits rows over tensor-parallel ranks, and tp = 1: give --tp");
    multiple("(micro-batch x seq / cp) % tp (--sp)", o.micro_batch * o.seq / s.cp, s.tp);
  }
  if (s.ep > 1) {
    if (o.experts == 0) refuse("ep = ", s.ep, ", but the model has no experts: give --experts");
    multiple("experts % ep", o.experts, s.ep);
  }
  if (o.experts > 0 && s.tp > 1 && !o.sequence_parallel)
    refuse("experts with tp = ", s.tp, " need --sp: each tensor-parallel rank must have tokens of its own");
  if (o.experts > 0 && o.top_k > o.experts) refuse("top-k = ", o.top_k, " is more than experts = ", o.experts);
  if (o.share_layers) multiple("layers % 2 (--share-layers uses each layer twice)", o.layers, 2);
  if (o.share_layers && s.pp > 1) refuse("--share-layers needs pp = 1: a layer used twice would be on two stages");
}

void check_pipeline(const Options& o) {
  if (o.virtual_stages > 1 && o.shape.pp == 1)
    refuse("virtual-stages = ", o.virtual_stages, " needs several stages, and pp = 1: give --pp");
  if (o.schedule.rfind("zero-bubble", 0) == 0 && o.shape.pp == 1)
    refuse("--schedule ", o.schedule, " fills the bubble of a pipeline, and pp = 1 has none: give --pp");
  const bool interleaved = o.schedule == "interleaved";
  if (o.virtual_stages > 1 && !interleaved)
    refuse("virtual-stages = ", o.virtual_stages, " needs --schedule interleaved, not ", o.schedule);
  if (interleaved && o.accum % o.shape.pp != 0)
    refuse("accum % pp = ", o.accum, " % ", o.shape.pp, " is not 0 (interleaved schedule)");
}

void check_sharding(Options& o) {
  if (o.shard == Shard::hybrid && o.shape.ep > 1)
    refuse("--fsdp hybrid divides dp x cp, over which experts with ep = ", o.shape.ep, " are not summed: take another");
  if (o.shard == Shard::hybrid) {
    const int ranks = o.shape.dp * o.shape.cp;
    const int half = o.shape.dp > 2 && o.shape.dp % 2 == 0 ? o.shape.dp / 2 : o.shape.dp;  // half of two shards nothing
    if (o.hybrid_shard == 0) o.hybrid_shard = half > 1 ? half : ranks;
    if (ranks % o.hybrid_shard != 0)
      refuse("(dp x cp) % hybrid-shard = (", o.shape.dp, " x ", o.shape.cp, ") % ", o.hybrid_shard, " is not 0");
  } else if (o.hybrid_shard != 0) {
    refuse("--hybrid-shard goes with --fsdp hybrid");
  }
  if (o.compress != Compress::none && o.shard != Shard::none)
    refuse("--compress acts on the all-reduce of plain data parallelism: leave out --zero and --fsdp");
  if (o.dtype == Dtype::f64 && o.compress == Compress::bf16)
    refuse("--compress bf16 would round fp64 gradients to 8 bits: take --dtype fp32 or bf16");
}

void check_training(const Options& o) {
  if (o.decay_steps > 0 && o.decay_steps <= o.warmup)
    refuse("decay-steps = ", o.decay_steps, " is not after warmup = ", o.warmup,
           ": the cosine begins where the warm-up ends");
  constexpr int64_t kMostColumns = 4096;
  if (o.print_schedule && o.accum > kMostColumns)
    refuse("--print-schedule draws at most ", kMostColumns, " micro-batches, and accum = ", o.accum);
}

}  // namespace

void complete_options(Options& options, int world) {
  complete_shape(options.shape, world);
  complete_batch(options);
  check_model(options);
  check_pipeline(options);
  check_sharding(options);
  check_training(options);
}

}  // namespace train
