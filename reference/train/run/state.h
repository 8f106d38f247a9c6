// SPDX-License-Identifier: MIT
//
// Where a training stands after a step: what it needs to go on exactly as if it had never stopped, beside tensors
// (parameters, master weights, moments). It is a few numbers, the same on every rank and in every layout, since batches
// and random numbers are counted over all ranks. Each rank's file of a dump has them in its metadata, as a text of
// JSON:
//
//   training_state = {"step": 6, "updates": 6,
//                     "sampler": {"seed": 1, "epoch": 0, "position": 48, "samples": 361},
//                     "loss_scale": {"scale": 1.0, "steps_without_overflow": 0}}
//
// `updates` are those of the optimizer, fewer than steps where gradients overflowed. Position counts sequences in the
// epoch; the order of an epoch follows from seed, epoch and samples. What top-k compression has held back is not here.

#pragma once

#include <cstdint>
#include <string>

#include "reference/train/run/loss_scale.h"
#include "reference/train/run/sampler.h"

namespace train {

inline constexpr const char* kStateKey = "training_state";  // in the metadata of a dump's file

struct TrainingState {
  int64_t step = 0, updates = 0;
  SamplerState sampler;
  LossScaleState loss_scale;
  bool operator==(const TrainingState&) const = default;
};

std::string state_text(const TrainingState& state);
// Throws Refusal for a text that is no state; `where` it stands begins the sentence.
TrainingState read_state(const std::string& text, const std::string& where);

}  // namespace train
