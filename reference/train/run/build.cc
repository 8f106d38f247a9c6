// SPDX-License-Identifier: MIT

#include "reference/train/run/build.h"

#include <fnmatch.h>

#include <algorithm>

#include "reference/train/model/parameters.h"
#include "reference/train/parallel/compress.h"
#include "reference/train/parallel/data.h"
#include "reference/train/parallel/fsdp.h"
#include "reference/train/parallel/tied.h"
#include "reference/train/parallel/two_sums.h"
#include "reference/train/parallel/zero.h"

namespace train {

Config config_of(const Options& o) {
  Config config;
  config.layers = o.layers;
  config.heads = o.heads;
  config.kv_heads = o.kv_heads;
  config.width = o.width;
  config.vocab = o.vocab;
  config.seq = o.seq;
  config.vocab_multiple = o.vocab_multiple;
  config.positions = o.positions == "rotary" ? Positions::rotary : Positions::learned;
  config.tied = !o.untied;
  config.dropout = o.dropout;
  config.share_layers = o.share_layers;
  config.freeze = o.freeze;
  config.experts = o.experts;
  config.top_k = o.top_k;
  config.capacity = o.capacity;
  config.aux_loss = o.aux_loss;
  config.dtype = o.dtype;
  config.seed = o.seed;
  return config;
}

void check_freeze(const Config& config) {
  const Groups alone;
  const Parameters parameters(config, alone);
  const auto& all = parameters.all();
  for (const std::string& pattern : config.freeze)
    if (std::none_of(all.begin(), all.end(),
                     [&](const auto& p) { return fnmatch(pattern.c_str(), p->name.c_str(), 0) == 0; }))
      refuse("--freeze ", pattern, " matches no parameter, such as ", all.front()->name,
             ": take a name or a shell pattern of names");
  if (std::all_of(all.begin(), all.end(), [](const auto& p) { return p->frozen; }))
    refuse("--freeze leaves no parameter to train: leave out a pattern");
}

void check_evaluation(const Options& o, const Text& text) {
  const int64_t most = (text.held_out() + o.global_batch - 1) / o.global_batch;
  if (o.eval_every > 0 && o.eval_every <= o.steps && o.given.count("--eval-batches") > 0 && o.eval_batches > most)
    refuse("eval-batches x global batch = ", o.eval_batches, " x ", o.global_batch, " = ",
           o.eval_batches * o.global_batch, " samples, but of the text ", text.held_out(),
           " are held out (a twentieth): --eval-batches can be at most ", most, "; or take a longer text");
}

static FsdpSettings fsdp_settings(const Options& o, const Communicators& comms) {
  FsdpSettings settings;
  // ZeRO-3 gathers module by module and keeps nothing.
  settings.wrap = o.shard == Shard::zero3 ? "layer" : o.wrap;
  settings.keep_root = o.shard != Shard::zero3;
  settings.keep_all = o.shard == Shard::grad_op;
  settings.keep_for_step = o.shape.pp > 1;
  settings.no_sync = o.no_sync;
  settings.prefetch_forward = o.overlap && (o.prefetch == "forward" || o.prefetch == "both");
  settings.prefetch_backward = o.overlap && (o.prefetch == "backward" || o.prefetch == "both");
  if (o.shard == Shard::hybrid) {
    settings.shard = &comms.shard;
    settings.replicas = &comms.replicas;
  }
  return settings;
}

// Where nothing travels nothing is left out.
static std::unique_ptr<Compressor> make_compressor(const StrategyParts& parts, const Comm& group) {
  if (group.size() == 1 || parts.options.compress == Compress::none) return nullptr;
  if (parts.options.compress == Compress::bf16) return make_bf16(parts.memory);
  return make_topk(parts.memory, parts.options.topk_fraction);
}

static std::unique_ptr<Strategy> make_sharding(const StrategyParts& parts, const Setup& setup) {
  const Options& o = parts.options;
  const double bucket = o.bucket_mb * (1 << 20);
  switch (o.shard) {
    case Shard::none:
      return make_data_parallel(setup, bucket, make_compressor(parts, setup.group));
    case Shard::zero1:
      return make_zero1(setup, bucket);
    case Shard::zero2:
      if (o.no_sync) return make_zero1(setup, bucket);
      return make_zero2(setup, bucket, o.shape.pp > 1);
    default:
      return make_fsdp(setup, fsdp_settings(o, parts.comms));
  }
}

using Make = std::function<std::unique_ptr<Strategy>(const Setup&)>;

// The table of tied embeddings is on both ends of a pipeline.
static std::unique_ptr<Strategy> make_dense(const StrategyParts& parts, const Setup& setup, const Make& make) {
  const Comm& ends = parts.comms.ends;
  for (Parameter* p : setup.parameters)
    if (!parts.options.untied && ends.size() > 1 && p->name == "transformer.wte.weight") {
      if (ends.rank() > 0) p->elsewhere = {{0, p->count}};
      if (!p->frozen) return tie_ends(setup, *p, ends, make);
    }
  return make(setup);
}

std::unique_ptr<Strategy> make_strategy(const StrategyParts& parts) {
  const Options& o = parts.options;
  Setup setup{{},      parts.model.parameters(),  parts.comms.data,       parts.compute, parts.memory,
              o.dtype, static_cast<int>(o.accum), o.optimizer == "adamw", o.overlap,     parts.initial};
  for (const auto& module : parts.model.modules()) setup.modules.push_back(module.get());
  const Make make = [&parts](const Setup& all) { return make_sharding(parts, all); };
  if (o.shape.ep == 1) return make_dense(parts, setup, make);
  // Experts' gradients are summed over other ranks than all else's.
  Setup experts{setup.modules, {},           parts.comms.experts, setup.compute,
                setup.memory,  setup.dtype,  setup.micro_batches, setup.second_moment,
                setup.overlap, setup.initial};
  setup.parameters.clear();
  for (Parameter* p : parts.model.parameters()) (p->expert ? experts : setup).parameters.push_back(p);
  return make_two_sums(make_dense(parts, setup, make), make(experts), parts.comms.world, parts.comms.data.rank() == 0,
                       parts.comms.experts.rank() == 0);
}

}  // namespace train
