// SPDX-License-Identifier: MIT

#include "reference/train/model/watch.h"

#include "reference/train/model/regions.h"

namespace train {
namespace {

std::string point(int64_t layer, const std::string& rest) {
  if (layer < 0) return rest;
  return "transformer.h." + std::to_string(layer) + (rest.empty() ? "" : "." + rest);
}

void show(const Context& context, Activation activation) {
  if (context.watcher->wants(activation.name)) context.watcher->see(context.micro_batch, activation);
}

// Ranks that share key/value heads have some columns twice.
void show_cut(const Context& context, int64_t layer, const char* rest, View values, const Parameter& weight, int dim) {
  if (context.watcher == nullptr) return;
  const int64_t width = weight.global[static_cast<size_t>(dim)];
  const bool cut = !weight.cut.empty() && weight.cut_dim == dim;
  show(context, {point(layer, rest), values, 0, width,
                 cut ? weight.cut : std::vector<std::array<int64_t, 2>>{{0, width}}, !weight.partial_over_kv.empty()});
}

}  // namespace

std::vector<std::string> activation_names(const Config& config) {
  std::vector<std::string> names{"transformer.drop"};
  const std::vector<const char*> attention{"ln_1", "attn.c_attn", "attn.heads", "attn.c_proj", "attn"};
  const std::vector<const char*> dense{"ln_2", "mlp.c_fc", "mlp.gelu", "mlp.c_proj", "mlp", ""};
  const std::vector<const char*> experts{"ln_2", "mlp.router", "mlp", ""};
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (const auto* points : {&attention, config.experts > 0 ? &experts : &dense})
      for (const char* rest : *points) names.push_back(point(layer, rest));
  names.insert(names.end(), {"transformer.ln_f", "lm_head"});
  return names;
}

void show_rows(const Context& context, const Batch& batch, int64_t layer, const char* rest, View values) {
  if (context.watcher == nullptr) return;
  const OuterRows rows = outer_rows(context, batch);
  const int64_t width = values.size / rows.count;
  const bool shared = context.tp().size() > 1 && !context.groups.sequence;
  show(context, {point(layer, rest), values, rows.begin, width, {{0, width}}, shared});
}

void show_outputs(const Context& context, int64_t layer, const char* rest, View values, const Parameter& weight) {
  show_cut(context, layer, rest, values, weight, 0);
}

void show_inputs(const Context& context, int64_t layer, const char* rest, View values, const Parameter& weight) {
  show_cut(context, layer, rest, values, weight, 1);
}

}  // namespace train
