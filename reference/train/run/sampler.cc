// SPDX-License-Identifier: MIT

#include "reference/train/run/sampler.h"

#include <numeric>
#include <utility>

#include "reference/train/kernels/philox.h"

namespace train {

// Fisher and Yates, with a Philox number of (epoch, place) for each exchange.
static std::vector<int64_t> shuffle(uint64_t seed, int64_t epoch, int64_t samples) {
  std::vector<int64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  const RandomStream random{seed, RandomUse::shuffle, 0};
  for (int64_t i = samples - 1; i > 0; --i) {
    const Words words = random_words(random, epoch, i, 0);
    const uint64_t draw = uint64_t{words[0]} << 32 | words[1];
    std::swap(order[static_cast<size_t>(i)], order[draw % static_cast<uint64_t>(i + 1)]);
  }
  return order;
}

int64_t Sampler::sample(int64_t number) {
  if (epoch(number) != shuffled_) {
    shuffled_ = epoch(number);
    order_ = shuffle(state_.seed, shuffled_, state_.samples);
  }
  return order_[static_cast<size_t>(number % state_.samples)];
}

}  // namespace train
