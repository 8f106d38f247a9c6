// SPDX-License-Identifier: MIT

#include "reference/train/model/parameters.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "reference/train/kernels/kernels.h"

namespace train {
namespace {

using Ranges = std::vector<std::array<int64_t, 2>>;

// The r-th of n equal pieces.
Ranges piece(int64_t total, int r, int n) { return {{total / n * r, total / n * (r + 1)}}; }

struct Table {
  const Config& config;
  const Groups& groups;
  std::vector<std::unique_ptr<Parameter>>& all;
  int64_t next_index = 0;

  Parameter& add(const std::string& name, std::vector<int64_t> shape) {
    Parameter& p = *all.emplace_back(std::make_unique<Parameter>());
    p.name = name;
    p.global = p.local = std::move(shape);
    p.index = next_index++;
    p.decay = p.global.size() > 1;
    p.init = p.global.size() > 1 ? Parameter::Init::normal : Parameter::Init::zeros;
    p.frozen = std::any_of(config.freeze.begin(), config.freeze.end(),
                           [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
    p.count = 1;
    for (const int64_t n : p.local) p.count *= n;
    return p;
  }

  void cut(Parameter& p, size_t dim, const Ranges& ranges) {
    int64_t length = 0;
    for (const auto& range : ranges) length += range[1] - range[0];
    p.count = p.count / p.local[dim] * length;
    p.local[dim] = length;
    p.cut_dim = static_cast<int>(dim);
    p.cut = ranges;
    p.replicated_over_tp = groups.tp.size() == 1;
  }

  // Between tensor-parallel regions: whole on every rank, and with sequence parallelism each rank sees a part of the
  // rows only.
  Parameter& outer(Parameter& p) {
    p.partial_over_tp = groups.sequence && groups.tp.size() > 1;
    return p;
  }

  void norm(const std::string& name) {
    outer(add(name + ".weight", {config.width})).init = Parameter::Init::ones;
    outer(add(name + ".bias", {config.width}));
  }

  // Rows of c_attn that several ranks hold, because there are fewer key/value heads than ranks: each has the gradient
  // from its own queries, and the first of them counts the rows.
  void share_keys(Parameter& p, int64_t queries) {
    if (groups.kv.size() == 1) return;
    const int64_t row = p.count / p.local[0];
    p.partial_over_kv = {{queries * row, p.count}};
    if (groups.kv.rank() > 0) p.elsewhere = p.partial_over_kv;
  }

  // A table with a row for each token.
  void vocabulary(const std::string& name) {
    Parameter& p = add(name, {config.vocab, config.width});
    const int64_t padded = padded_vocab(config, groups.tp.size());
    if (padded != config.vocab || groups.tp.size() > 1) cut(p, 0, piece(padded, groups.tp.rank(), groups.tp.size()));
  }

  // A layer whose outputs (`rows` of the weight) are cut, and the one after it, whose inputs are.
  void columns_then_rows(const std::string& first, int64_t outputs, const Ranges& rows, const std::string& second,
                         int64_t inputs, const Ranges& columns) {
    const bool whole = groups.tp.size() == 1;
    Parameter& w1 = add(first + ".weight", {outputs, config.width});
    Parameter& b1 = add(first + ".bias", {outputs});
    Parameter& w2 = projection(second + ".weight", inputs);
    outer(add(second + ".bias", {config.width}));
    if (whole) return;
    cut(w1, 0, rows);
    cut(b1, 0, rows);
    cut(w2, 1, columns);
  }

  // What adds to the residual stream starts smaller, so that its sum over 2 L layers does not grow (GPT-2).
  Parameter& projection(const std::string& name, int64_t inputs) {
    Parameter& p = add(name, {config.width, inputs});
    p.init_std = 0.02 / std::sqrt(2.0 * static_cast<double>(config.layers));
    return p;
  }

  void attention(const std::string& layer) {
    const Heads h = heads_of(config, groups.tp.rank(), groups.tp.size());
    const int64_t d = h.width, keys_begin = config.width, kv = config.key_value_heads() * d,
                  values_begin = config.width + kv;
    const int64_t q = h.first_query * d, k = h.first_key * d;
    const Ranges rows = {{q, q + h.queries * d},
                         {keys_begin + k, keys_begin + k + h.keys * d},
                         {values_begin + k, values_begin + k + h.keys * d}};
    norm(layer + "ln_1");
    const size_t first = all.size();
    columns_then_rows(layer + "attn.c_attn", config.width + 2 * kv, rows, layer + "attn.c_proj", config.width,
                      {{q, q + h.queries * d}});
    share_keys(*all[first], h.queries * d);      // weight
    share_keys(*all[first + 1], h.queries * d);  // bias
  }

  void dense_mlp(const std::string& layer) {
    const Ranges part = piece(config.hidden(), groups.tp.rank(), groups.tp.size());
    columns_then_rows(layer + "mlp.c_fc", config.hidden(), part, layer + "mlp.c_proj", config.hidden(), part);
  }

  // An expert sees the tokens of its ranks: without expert parallelism a part of the rows, as all that is outside of
  // tensor-parallel regions, with it those of the ranks that send it some, which is a sum of its own.
  void mine_of(Parameter& p) {
    p.expert = groups.ep.size() > 1;
    if (!p.expert) outer(p);
  }

  // Experts of other ranks are numbered but not held.
  void experts(const std::string& layer) {
    outer(add(layer + "mlp.router.weight", {config.experts, config.width}));
    const int64_t mine = config.experts / groups.ep.size(), first = mine * groups.ep.rank();
    for (int64_t e = 0; e < config.experts; ++e) {
      const size_t before = all.size();
      const std::string expert = layer + "mlp.experts." + std::to_string(e);
      mine_of(add(expert + ".c_fc.weight", {config.hidden(), config.width}));
      mine_of(add(expert + ".c_fc.bias", {config.hidden()}));
      mine_of(projection(expert + ".c_proj.weight", config.hidden()));
      mine_of(add(expert + ".c_proj.bias", {config.width}));
      if (e < first || e >= first + mine) all.resize(before);
    }
  }

  void model() {
    vocabulary("transformer.wte.weight");
    if (config.positions == Positions::learned) outer(add("transformer.wpe.weight", {config.seq, config.width}));
    for (int64_t i = 0; i < config.layers; ++i) {
      if (config.parameter_layer(i) != i) continue;
      const std::string layer = layer_parameter(config, i, "");
      attention(layer);
      norm(layer + "ln_2");
      if (config.experts == 0)
        dense_mlp(layer);
      else
        experts(layer);
    }
    norm("transformer.ln_f");
    if (!config.tied) vocabulary("lm_head.weight");
    for (const auto& p : all)
      if (p->replicated_over_tp && groups.tp.rank() > 0 && !p->expert) p->elsewhere = {{0, p->count}};
  }
};

}  // namespace

std::string layer_parameter(const Config& config, int64_t layer, const std::string& rest) {
  return "transformer.h." + std::to_string(config.parameter_layer(layer)) + "." + rest;
}

Parameters::Parameters(const Config& config, const Groups& groups) { Table{config, groups, all_}.model(); }

Parameter& Parameters::operator[](const std::string& name) const {
  for (const auto& p : all_)
    if (p->name == name) return *p;
  std::fprintf(stderr, "lockstep-train: this model has no parameter %s\n", name.c_str());
  std::abort();
}

void initialise(cudaStream_t stream, const Config& config, const Parameter& p, View into) {
  fill(stream, into, p.init == Parameter::Init::ones ? 1 : 0);
  if (p.init != Parameter::Init::normal) return;
  const RandomStream random{config.seed, RandomUse::init, 0};
  const int64_t columns = p.local[1];
  if (p.cut_dim == 1) {
    fill_normal(stream, into, random, p.index, p.init_std, p.local[0], columns, 0, p.cut.at(0)[0]);
    return;
  }
  int64_t done = 0;  // rows of the part
  const Ranges rows = p.cut.empty() ? Ranges{{0, p.global[0]}} : p.cut;
  for (const auto& range : rows) {
    const int64_t count = std::max<int64_t>(std::min(range[1], p.global[0]) - range[0], 0);  // without padding
    fill_normal(stream, into.part(done * columns, count * columns), random, p.index, p.init_std, count, columns,
                range[0], 0);
    done += range[1] - range[0];
  }
}

}  // namespace train
