// SPDX-License-Identifier: MIT
//
// Philox4x32-10 (Salmon et al., SC11, section 3): four random words as a function of a counter and a key. A number has
// no predecessor, so any rank can make any number of the model, and every layout makes the same ones.

#pragma once

#include <array>
#include <cstdint>

#include "reference/train/kernels/kernels.h"

namespace train {

using Words = std::array<uint32_t, 4>;

inline Words philox(Words counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

inline std::array<uint32_t, 2> key_of(const RandomStream& random) {
  return {static_cast<uint32_t>(random.seed), static_cast<uint32_t>(random.seed >> 32)};
}
// The counter's last word, the same for all numbers of a sample: purpose, layer, and the sample's bits 32 to 43.
inline uint32_t purpose_of(const RandomStream& random, int64_t sample) {
  return static_cast<uint32_t>(random.use) << 24 | (random.layer & 0xfffU) << 12 |
         (static_cast<uint32_t>(sample >> 32) & 0xfffU);
}
// The words of features 4 * block ... 4 * block + 3.
inline Words random_words(const RandomStream& random, int64_t sample, int64_t position, int64_t block) {
  return philox({static_cast<uint32_t>(block), static_cast<uint32_t>(position), static_cast<uint32_t>(sample),
                 purpose_of(random, sample)},
                key_of(random));
}

// Uniform numbers are the top 24 bits, so `uniform >= p` is a comparison of integers: of word >> 8 with this.
inline uint32_t threshold_of(double p) {
  const double scaled = p * 0x1p24;
  const auto whole = static_cast<uint32_t>(scaled);
  return whole + (static_cast<double>(whole) < scaled ? 1U : 0U);
}
inline double uniform_of(uint32_t word) { return (word >> 8) * 0x1p-24; }

}  // namespace train
