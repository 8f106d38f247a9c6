// SPDX-License-Identifier: MIT

#include "verify/compare/hint.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "verify/assemble/assemble.h"

namespace lockstep::verify {
namespace {

using dump::Shard;

constexpr const char* kBothNan =
    "NaNs on both sides: the trainings may have failed in the same way, and numbers that are none cannot be the same; "
    "find what makes the first of them";

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// The whole number from 2 on that a ratio is, as far as rounding lets one see; 0: it is none.
int64_t whole(double ratio) {
  const double nearest = std::nearbyint(ratio);
  return nearest >= 2 && nearest <= 1e9 && std::fabs(ratio - nearest) <= 1e-3 * nearest ? static_cast<int64_t>(nearest)
                                                                                        : 0;
}

bool is_loss_scale(int64_t factor) { return factor >= 256 && (factor & (factor - 1)) == 0; }

std::string of_ranks(int64_t factor, const Worlds& worlds) {
  return factor == worlds.b ? ", the number of B's ranks" : factor == worlds.a ? ", the number of A's ranks" : "";
}

// A constant factor between the two.
std::string factor_hint(double ratio, const Worlds& worlds) {
  if (const int64_t n = whole(ratio)) {
    const std::string head = "B is " + std::to_string(n) + " times A" + of_ranks(n, worlds) + ": ";
    if (is_loss_scale(n)) return head + "a loss scale that was not divided out again";
    return head + "a sum that was meant to be a mean over " + std::to_string(n) +
           " ranks or micro-batches, or one reduction too many";
  }
  if (const int64_t n = whole(1 / ratio)) {
    const std::string head = "B is A / " + std::to_string(n) + of_ranks(n, worlds) + ": ";
    if (is_loss_scale(n)) return head + "a loss scale that was divided out but never multiplied in";
    return head + "divided by a number of ranks or micro-batches once too often, or one of " + std::to_string(n) +
           " equal contributions instead of their sum";
  }
  return "B is A times " + number_text(ratio) +
         ": the direction is right and the scale is not: a mean of means over unequal token counts, another clipping "
         "factor, or a division by the wrong size of a group";
}

// Some elements, spread over the tensor; a test on them stops at the first that fails it.
std::vector<int64_t> samples_of(int64_t elements, int64_t wanted) {
  std::vector<int64_t> samples;
  const int64_t step = std::max<int64_t>(1, elements / wanted);
  for (int64_t i = 0; i < elements && static_cast<int64_t>(samples.size()) < wanted; i += step) samples.push_back(i);
  return samples;
}

// Does B at a sample have what A has at `source` of it? Zeros, and places where A has the same at both, prove nothing.
bool moved(const GlobalTensor& a, const GlobalTensor& b, const std::vector<int64_t>& samples,
           const std::function<int64_t(int64_t)>& target, const std::function<int64_t(int64_t)>& source) {
  int64_t proofs = 0;
  for (const int64_t sample : samples) {
    const int64_t to = target(sample), from = source(sample);
    if (from < 0 || to < 0) continue;
    const double there = value_at(b, to), origin = value_at(a, from);
    if (!(std::fabs(there - origin) <= 1e-4 * std::fabs(origin))) return false;
    proofs += origin != 0 && std::fabs(origin - value_at(a, to)) > 1e-3 * std::fabs(origin);
  }
  return proofs * 4 >= static_cast<int64_t>(samples.size()) && proofs >= 2;
}

bool transposed(const GlobalTensor& a, const GlobalTensor& b) {
  if (a.shape.size() != 2) return false;
  const int64_t rows = a.shape[0], columns = a.shape[1];
  return moved(
      a, b, samples_of(a.elements, 256), [](int64_t at) { return at; },
      [&](int64_t at) { return at % rows * columns + at / rows; });
}

// B[.., t, ..] = A[.., t + by, ..]
bool shifted(const GlobalTensor& a, const GlobalTensor& b, size_t dimension, int64_t by) {
  int64_t stride = 1;
  for (size_t d = dimension + 1; d < a.shape.size(); d++) stride *= a.shape[d];
  const int64_t extent = a.shape[dimension];
  return moved(
      a, b, samples_of(a.elements, 257), [](int64_t at) { return at; },
      [&](int64_t at) {
        const int64_t index = at / stride % extent + by;
        return index < 0 || index >= extent ? int64_t{-1} : at + by * stride;
      });
}

std::string shifted_hint(const GlobalTensor& a, const GlobalTensor& b) {
  for (size_t d = 0; d < a.shape.size(); d++)
    for (const int64_t by : {1, -1})
      if (shifted(a, b, d, by))
        return std::string("B is A moved by one along dimension ") + std::to_string(d) +
               ": an index that is off by one, such as labels shifted twice or within each shard";
  return "";
}

// Does a rank of B hold what belongs to another rank's place?
std::string shard_order_hint(const GlobalTensor& a, const GlobalTensor& b, const std::vector<Shard>& shards) {
  constexpr size_t kMost = 64;
  if (shards.size() < 2 || shards.size() > kMost) return "";
  for (const Shard& mine : shards)
    for (const Shard& other : shards) {
      const int64_t elements = mine.stored->elements();
      if (&mine == &other || elements != other.stored->elements() || elements == 0) continue;
      if (mine.placement.kind != dump::Placement::Kind::owned) return "";
      if (moved(
              a, b, samples_of(elements, 64), [&](int64_t at) { return dump::global_offset(mine.placement, at); },
              [&](int64_t at) { return dump::global_offset(other.placement, at); }))
        return "rank " + std::to_string(mine.rank) + " of B holds what A has at the place of rank " +
               std::to_string(other.rank) +
               ": shards in another order (ranks sorted as text?), or a wrong group or offset";
    }
  return "";
}

}  // namespace

std::string tensor_hint(const GlobalTensor& a, const GlobalTensor& b, const std::vector<Shard>& shards_b,
                        const Values& values, const Place& place, const Worlds& worlds) {
  if (values.nan_b > 0 && values.nan_a == 0)
    return "B has " + std::to_string(values.nan_b) + (values.nan_b == 1 ? " NaN" : " NaNs") +
           ": a division by zero, an overflow, or memory that was never written";
  if (values.nan_a > 0 && values.nan_b == 0) return "A, not B, has NaNs: " + std::to_string(values.nan_a);
  if (values.nan_a > 0) return kBothNan;
  if (values.inf_a + values.inf_b > 0) return "";
  const auto only_some = [&]() -> std::string {
    if (place.other_ranks_b.empty() || place.ranks_b.empty()) return "";
    return "only elements of " + ranks_text({place.ranks_b.begin(), place.ranks_b.end()}) + " of B differ; those of " +
           ranks_text({place.other_ranks_b.begin(), place.other_ranks_b.end()}) +
           " are right: look at what is special about the first (a group it is not in, a shard it does not reduce or "
           "update)";
  };
  if (values.norm_b == 0) return "B is all zeros: never written, never reduced, or cleared too early";
  if (values.norm_a == 0) return "A is all zeros, B is not; where it should be exactly zero, this is rounding noise";
  if (values.cosine > 1 - 1e-6 && std::fabs(values.norm_b / values.norm_a - 1) > 1e-4)
    return factor_hint(values.norm_b / values.norm_a, worlds);
  if (values.cosine < -1 + 1e-6)
    return "B is A with the other sign, times " + number_text(values.norm_b / values.norm_a);
  if (transposed(a, b))
    return "B is A transposed: a reshape where a transposition was meant, or rows and columns exchanged";
  if (std::string hint = shard_order_hint(a, b, shards_b); !hint.empty()) return hint;
  if (std::string hint = shifted_hint(a, b); !hint.empty()) return hint;
  if (std::string hint = only_some(); !hint.empty()) return hint;
  const double ratio = values.norm_b / values.norm_a;
  if (a.elements >= 32 && std::fabs(values.cosine) < 0.25 && ratio > 0.8 && ratio < 1.25)
    return "values of the same size that have nothing to do with each other: other random numbers (a seed, an "
           "initialization), other data, or elements in an order that mixes them up";
  return "";
}

std::string zero_gradient_hint(const GlobalTensor& gradient, const Place& place) {
  constexpr int64_t kMostElements = 1 << 22;
  if (gradient.elements > kMostElements || place.box.empty()) return "";
  double squares = 0, largest = 0;
  for (int64_t at = 0; at < gradient.elements; at++) {
    const double value = std::fabs(value_at(gradient, at));
    squares += value * value;
    const std::vector<int64_t> index = dump::index_of(at, gradient.shape);
    bool inside = true;
    for (size_t d = 0; d < index.size(); d++)
      inside = inside && index[d] >= place.box[d][0] && index[d] < place.box[d][1];
    if (inside) largest = std::max(largest, value);
  }
  const double usual = std::sqrt(squares / static_cast<double>(gradient.elements));
  if (!(usual > 0) || largest > 1e-5 * usual) return "";
  return "the gradient of the elements that differ is zero but for rounding (at most " + number_text(largest) +
         " in A, where others are about " + number_text(usual) +
         "), as that of the keys' bias is: AdamW with a small eps makes steps of the learning rate's size of it; "
         "compare "
         "trainings with eps 1e-4, or expect this difference";
}

std::string metric_hint(const std::string& name, double a, double b, const Worlds& worlds) {
  if (std::isnan(a) && std::isnan(b)) return kBothNan;
  if (std::isnan(b) || std::isnan(a) || a == 0 || b == 0) return "";
  const double ratio = b / a;
  if (name == "norm") {
    if (const int64_t n = whole(ratio * ratio))
      return "B's norm is sqrt(" + std::to_string(n) + ") times A's: squares of " + std::to_string(n) +
             " copies were added where one counts (replicated gradients)";
    if (const int64_t n = whole(1 / (ratio * ratio)))
      return "B's norm is A's / sqrt(" + std::to_string(n) + "): the squares of one part of " + std::to_string(n) +
             " only (a shard, a stage); the sum over the other ranks is missing";
    return ratio < 1 ? "B's norm is too small: squares of some ranks, stages or parameters are missing"
                     : "B's norm is too large: some gradients are counted more than once, such as those that are "
                       "replicated over tensor parallel ranks";
  }
  if (name == "lr")
    return "the schedules are not at the same place: a step counter that counts ranks or micro-batches, or was not "
           "restored";
  if (name == "loss") {
    if (whole(ratio) || whole(1 / ratio)) return factor_hint(ratio, worlds);
    return "another mean: over ranks or micro-batches instead of over all tokens, or other tokens (mask, padding, "
           "boundary of a shard)";
  }
  if (name == "tokens") return "another number of tokens: part of the batch, or the mask, is not the same";
  if (name == "loss_scale")
    return "another loss scale: a step that only one of the two skipped, or a scaler that was not restored";
  return "";
}

static std::string look_at_stage(const std::string& category) {
  const std::string before = "nothing that was compared before it differs; ";
  if (category == "batch" || category == "tokens")
    return "they were not given the same data: look at the sampler, its seed and epoch, and at how the batch is cut "
           "among ranks";
  if (category == "act")
    return before +
           "where the batch is among that, the forward pass goes apart here: look at the layer that writes this and at "
           "the collectives in it";
  if (category == "loss")
    return before + "where activations are among that, look at how the loss is summed and divided";
  if (category == "grad")
    return before +
           "where the loss is among that, look at the backward pass of this layer and at the reduction of its gradient";
  if (category == "norm")
    return before + "where gradients are among that, look at which ranks' squares enter the norm, and how often";
  if (category == "lr" || category == "loss_scale") return before + "look at the schedule or the scaler";
  if (category == "param" || category == "master")
    return before +
           "where gradients and the optimizer's state are among that, look at the update: step count, weight decay, "
           "parameters it does not hold, the gathering after it";
  if (category == "adam_m" || category == "adam_v" || category == "momentum")
    return before +
           "where gradients and norm are among that, look at what the optimizer's state is updated with: clipping, the "
           "parameters it holds, and what was restored";
  return "";
}

std::string look_at(const std::string& kind, char side, const std::string& category, int64_t step) {
  const bool placed_wrongly = kind == "gap" || kind == "overlap" || (kind == "shape" && side != 0);
  if (placed_wrongly)
    return std::string("the code that writes this dump: ") + side + " is not sound by itself, comparing " + side +
           " with " + side + " says the same";
  if (kind == "missing" || kind == "shape" || kind == "dtype") return "";
  if (step == 0 && (category == "param" || category == "master"))
    return "the parameters before the first step: look at the seed, at how each is initialized or loaded, and at what "
           "random "
           "numbers are drawn in which order";
  return look_at_stage(category);
}

}  // namespace lockstep::verify
