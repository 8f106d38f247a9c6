// SPDX-License-Identifier: MIT

#include "reference/train/run/state.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "reference/train/run/refusal.h"

namespace train {
namespace {

using nlohmann::json;

struct Reader {
  const std::string& where;

  const json& member(const json& object, const char* key) const {
    if (!object.is_object() || !object.contains(key)) refuse(where, ": the training's state has no \"", key, "\"");
    return object[key];
  }
  template <class T = int64_t>
  T whole(const json& object, const char* key, T least = 0) const {
    const json& value = member(object, key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{std::numeric_limits<T>::max()} ||
        value.get<T>() < least)
      refuse(where, ": \"", key, "\" of the training's state is ", value.dump(), ", but must be a whole number from ",
             least, " on");
    return value.get<T>();
  }
  double scale(const json& object) const {
    const json& value = member(object, "scale");
    if (!value.is_number() || !(value.get<double>() >= 0) || !std::isfinite(value.get<double>()))
      refuse(where, ": \"scale\" of the training's state is ", value.dump(), ", but must be a number of at least 0");
    return value.get<double>();
  }
};

}  // namespace

std::string state_text(const TrainingState& state) {
  const SamplerState& s = state.sampler;
  const nlohmann::ordered_json text = {
      {"step", state.step},
      {"updates", state.updates},
      {"sampler",
       {{"seed", s.seed}, {"epoch", s.next / s.samples}, {"position", s.next % s.samples}, {"samples", s.samples}}},
      {"loss_scale", {{"scale", state.loss_scale.scale}, {"steps_without_overflow", state.loss_scale.good}}}};
  return text.dump();
}

TrainingState read_state(const std::string& text, const std::string& where) {
  const json all = json::parse(text, nullptr, false);
  if (!all.is_object()) refuse(where, ": the training's state is not a JSON object");
  const Reader read{where};
  const json &sampler = read.member(all, "sampler"), &scale = read.member(all, "loss_scale");
  const int64_t samples = read.whole(sampler, "samples", int64_t{1}), epoch = read.whole(sampler, "epoch"),
                position = read.whole(sampler, "position");
  if (position >= samples || epoch > std::numeric_limits<int64_t>::max() / samples - 1)
    refuse(where, ": epoch ", epoch, " and position ", position, " of the training's state are not in epochs of ",
           samples, " samples");
  return {read.whole(all, "step"),
          read.whole(all, "updates"),
          {read.whole<uint64_t>(sampler, "seed"), epoch * samples + position, samples},
          {read.scale(scale), read.whole(scale, "steps_without_overflow")}};
}

}  // namespace train
