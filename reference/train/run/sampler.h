// SPDX-License-Identifier: MIT
//
// Which sample is trained on when. Sequences are numbered from the beginning of the training, over all ranks: step s
// takes the next global batch of them, micro-batch k of data-parallel rank r the (k * dp + r)-th piece of that. Number
// g is sample order(epoch)[g % samples] of epoch g / samples, a new shuffle in every epoch. So each sample is seen once
// an epoch however many ranks there are, and who sees it decides nothing else. The number of a sequence is also what
// its random numbers are made from.

#pragma once

#include <cstdint>
#include <vector>

namespace train {

// All there is to save: the shuffles follow from it.
struct SamplerState {
  uint64_t seed = 0;
  int64_t next = 0;  // number of the first sequence of the next step
  int64_t samples = 0;
  bool operator==(const SamplerState&) const = default;
};

class Sampler {
 public:
  Sampler(uint64_t seed, int64_t samples) : state_{seed, 0, samples} {}

  const SamplerState& state() const { return state_; }
  void restore(const SamplerState& state) { state_ = state; }
  void advance(int64_t global_batch) { state_.next += global_batch; }

  int64_t sample(int64_t number);  // of a sequence
  int64_t epoch(int64_t number) const { return number / state_.samples; }

 private:
  SamplerState state_;
  int64_t shuffled_ = -1;  // epoch
  std::vector<int64_t> order_;
};

}  // namespace train
