// SPDX-License-Identifier: MIT

#include "reference/train/run/memory_needed.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iomanip>
#include <sstream>

#include "reference/train/core/device.h"
#include "reference/train/run/build.h"
#include "reference/train/run/control_group.h"

namespace train {
namespace {

struct Sizes {
  double width, keys;  // of the residual stream; of all key/value heads
  double layers;       // of a pipeline stage
  double tp, rows;
};
Sizes sizes_of(const Options& o) {
  const auto width = static_cast<double>(o.width);
  return {width, width / o.heads * o.kv_heads, static_cast<double>(o.layers) / o.shape.pp,
          static_cast<double>(o.shape.tp),
          static_cast<double>(o.micro_batch) * static_cast<double>(o.seq) / o.shape.cp};
}

// Matrices, which tensor parallelism cuts, without biases and norms.
double parameters_of(const Options& o, bool embeddings) {
  const Sizes s = sizes_of(o);
  const double attention = (2 * s.width + 2 * s.keys) * s.width / s.tp;
  const double mlp = 8 * s.width * s.width;
  const double layer = attention + (o.experts > 0 ? mlp * o.experts / o.shape.ep : mlp / s.tp);
  const double table = static_cast<double>(o.vocab) * s.width / s.tp;
  const double positions = o.positions == "learned" ? static_cast<double>(o.seq) * s.width : 0;
  const double ends = embeddings ? table + positions + (o.untied && o.shape.pp == 1 ? table : 0) : 0;
  return layer * s.layers / (o.share_layers ? 2 : 1) + ends;
}

// Bytes a parameter, spread over the ranks that share it.
double states_of(const Options& o) {
  const auto value = static_cast<double>(size_of(o.dtype)), wide_value = static_cast<double>(size_of(wide(o.dtype)));
  const double moments = o.optimizer == "adamw" ? 2 : 1, master = o.dtype == Dtype::bf16 ? 1 : 0;
  const double ranks = o.shard == Shard::hybrid ? o.hybrid_shard : o.shape.dp * o.shape.cp;
  const bool whole_values = o.shard == Shard::none || o.shard == Shard::zero1 || o.shard == Shard::zero2;
  const bool whole_gradients = o.shard == Shard::none || o.shard == Shard::zero1 || (o.no_sync && o.accum > 1);
  double bytes = value / (whole_values ? 1 : ranks);
  if (!o.freeze.empty()) return bytes;  // nothing else for what is frozen, which may be nearly all
  bytes += wide_value / (whole_gradients ? 1 : ranks);
  return bytes + (moments + master) * wide_value / (o.shard == Shard::none ? 1 : ranks);
}

// What modules keep for a token of this rank between its two passes, as docs/trainer.md lists it.
struct Kept {
  double values = 0, statistics = 0, numbers = 0;
  Kept& operator+=(const Kept& more) {
    values += more.values;
    statistics += more.statistics;
    numbers += more.numbers;
    return *this;
  }
};

// `outer`: the part of the rows between tensor-parallel regions that this rank has.
Kept kept_by_attention(const Options& o, const Config& c, double outer) {
  const Heads heads = heads_of(c, 0, o.shape.tp);
  const auto columns = static_cast<double>(heads.columns() + heads.queries * heads.width);
  const bool gathered = o.shape.cp > 1 && o.cp_algo == "ulysses";  // queries, keys, values and result once more
  return {outer * 2 * static_cast<double>(c.width) + columns * (gathered ? 2 : 1),
          outer * 2 + static_cast<double>(heads.queries), 0};
}

// At least so many of a token's choices are served: under a capacity all tokens may want the same experts. Ranks get as
// many rows as they send, one with another.
double served(const Config& c) {
  const auto top_k = static_cast<double>(c.top_k), length = static_cast<double>(c.seq);
  if (c.capacity == 0) return top_k;
  const double most = std::ceil(c.capacity * top_k * length / static_cast<double>(c.experts));
  return top_k * std::min(1.0, most / length);
}

Kept kept_by_mlp(const Options& o, const Config& c, double outer) {
  const auto width = static_cast<double>(c.width), hidden = static_cast<double>(c.hidden());
  if (c.experts == 0) return {outer * 2 * width + 2 * hidden / o.shape.tp, outer * 2, 0};
  const auto experts = static_cast<double>(c.experts), top_k = static_cast<double>(c.top_k);
  const double rows = served(c);
  return {outer * (2 * width + experts + rows * (2 * width + 2 * hidden)), outer * (2 + experts + top_k),
          outer * (2 * top_k + rows)};
}

// Of one micro-batch on the stage with the embeddings, or on one between the ends.
double activations_of(const Options& o, bool embeddings) {
  const Config c = config_of(o);
  const double outer = o.sequence_parallel ? 1.0 / o.shape.tp : 1;
  const auto width = static_cast<double>(c.width);
  Kept kept;
  if (embeddings) kept += {outer * width, 0, 0};
  Kept layer = kept_by_attention(o, c, outer);
  layer += kept_by_mlp(o, c, outer);
  const Sizes s = sizes_of(o);
  kept += {layer.values * s.layers, layer.statistics * s.layers, layer.numbers * s.layers};
  if (o.shape.pp == 1)
    kept += {outer * width + static_cast<double>(padded_vocab(c, o.shape.tp)) / s.tp, outer * 2 + 3, 0};
  return s.rows * (kept.values * static_cast<double>(size_of(o.dtype)) +
                   kept.statistics * static_cast<double>(size_of(wide(o.dtype))) + kept.numbers * 4);
}

double tokens_of(const Options& o) {
  constexpr double kBytes = 2 * (8 + 5 * 4);  // on the host and on the device (batches.cc)
  return sizes_of(o).rows * static_cast<double>(o.accum) * kBytes;
}

std::string gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g GiB", bytes / (1 << 30));
  return text;
}

struct Machine {
  double bytes;
  int ranks;         // that share them
  bool host;         // the device's memory is the host's
  std::string says;  // what it has
};
Machine machine_for(int ranks) {
  int devices = 0, integrated = 0;
  size_t available = 0, total = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  check(cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, 0), "cudaDeviceGetAttribute");
  check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  if (integrated == 0) {
    const auto bytes = static_cast<double>(total);
    return {bytes, (ranks + devices - 1) / devices, false, "it has " + gib(bytes)};
  }
  const double physical = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  const double all = std::min(static_cast<double>(total), physical);
  if (const auto limit = memory_limit(); limit && limit->bytes < all)
    return {limit->bytes, ranks, true, limit->file + " allows " + gib(limit->bytes)};
  return {all, ranks, true, "it has " + gib(all)};
}

std::string largest_of(const Options& o, const Needed& n) {
  std::ostringstream out;
  if (n.states >= n.activations && n.states >= n.tokens) {
    out << "layers = " << o.layers << " of width = " << o.width;
    if (o.experts > 0) out << " with experts = " << o.experts;
    out << " are " << std::setprecision(3) << n.parameters << " parameters on a rank, which take " << gib(n.states);
  } else {
    out << "micro-batch = " << o.micro_batch << " of seq = " << o.seq;
    if (n.activations >= n.tokens && o.experts > 0) out << " with experts = " << o.experts << ", top-k = " << o.top_k;
    if (n.activations >= n.tokens)
      out << " has activations that take " << gib(n.activations);
    else
      out << " and accum = " << o.accum << " are tokens that take " << gib(n.tokens);
    out << " on a rank";
  }
  return out.str();
}

}  // namespace

Needed least_memory(const Options& o, bool embeddings) {
  const double parameters = parameters_of(o, embeddings);
  return {parameters, parameters * states_of(o), activations_of(o, embeddings), tokens_of(o)};
}

static void check_fits(const Options& options, const Needed& largest, double all, const Machine& machine) {
  if (all > machine.bytes)
    refuse(largest_of(options, largest), "; at least ", gib(all), " are needed for ranks = ", machine.ranks,
           " on this machine, and ", machine.says, ": take smaller sizes");
}

void check_memory(const Options& options, int ranks) {
  const Machine machine = machine_for(ranks);
  const Needed first = least_memory(options, true), other = least_memory(options, options.shape.pp == 1);
  check_fits(options, first, first.bytes() + (machine.ranks - 1) * other.bytes(), machine);
}

void check_memory_to_save(const Options& options) {
  Options whole = options;
  whole.shape = {};
  const Machine machine = machine_for(1);
  const double parameters = parameters_of(whole, true);
  const double values = parameters * static_cast<double>(size_of(options.dtype));
  const Needed needed{parameters, machine.host ? 2 * values : values, 0, 0};
  check_fits(options, needed, needed.bytes(), machine);
}

}  // namespace train
