// SPDX-License-Identifier: MIT
//
// Philox4x32-10 (Salmon et al., SC11, section 3): four random words as a function of a counter and a key. A number has
// no predecessor, so any rank can make any number of the model, and every layout makes the same ones.

#pragma once

#include <array>
#include <cstdint>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/numbers.h"

namespace train {

using Words = std::array<uint32_t, 4>;

struct Block {
  uint32_t a, b, c, d;
};

// A round, and the key's step to the next one.
LOCKSTEP_INLINE void philox_round(Block& x, uint32_t& key0, uint32_t& key1) {
  const uint64_t left = uint64_t{0xD2511F53} * x.a, right = uint64_t{0xCD9E8D57} * x.c;
  x = {static_cast<uint32_t>(right >> 32) ^ x.b ^ key0, static_cast<uint32_t>(right),
       static_cast<uint32_t>(left >> 32) ^ x.d ^ key1, static_cast<uint32_t>(left)};
  key0 += 0x9E3779B9;
  key1 += 0xBB67AE85;
}
LOCKSTEP_INLINE Block philox_block(Block x, uint32_t key0,
                                   uint32_t key1) {  // written out: vector code has no loop here
  philox_round(x, key0, key1);
  philox_round(x, key0, key1);
  philox_round(x, key0, key1);
  philox_round(x, key0, key1);
  philox_round(x, key0, key1);
  philox_round(x, key0, key1);
  philox_round(x, key0, key1);
  philox_round(x, key0, key1);
  philox_round(x, key0, key1);
  philox_round(x, key0, key1);
  return x;
}
inline Words philox(Words counter, std::array<uint32_t, 2> key) {
  const Block x = philox_block({counter[0], counter[1], counter[2], counter[3]}, key[0], key[1]);
  return {x.a, x.b, x.c, x.d};
}

inline std::array<uint32_t, 2> key_of(const RandomStream& random) {
  return {static_cast<uint32_t>(random.seed), static_cast<uint32_t>(random.seed >> 32)};
}
// The counter's last word, the same for all numbers of a sample: purpose, layer, and the sample's bits 32 to 43.
LOCKSTEP_INLINE uint32_t purpose_of(const RandomStream& random, int64_t sample) {
  return static_cast<uint32_t>(random.use) << 24 | (random.layer & 0xfffU) << 12 |
         (static_cast<uint32_t>(sample >> 32) & 0xfffU);
}
// The words of features 4 * block ... 4 * block + 3.
inline Words random_words(const RandomStream& random, int64_t sample, int64_t position, int64_t block) {
  return philox({static_cast<uint32_t>(block), static_cast<uint32_t>(position), static_cast<uint32_t>(sample),
                 purpose_of(random, sample)},
                key_of(random));
}

// The words of features first ... first + count - 1 of one position: returns where they begin in `room`, which holds
// count + kRandomSlack words.
inline constexpr int64_t kRandomSlack = 8;
LOCKSTEP_INLINE const uint32_t* random_row(uint32_t* room, const RandomStream& random, int64_t sample, int64_t position,
                                           int64_t first, int64_t count) {
  const int64_t block = first / 4, blocks = (first + count + 3) / 4 - block;
  const auto start = static_cast<uint32_t>(block), row = static_cast<uint32_t>(position),
             low = static_cast<uint32_t>(sample), purpose = purpose_of(random, sample);
  const auto key0 = static_cast<uint32_t>(random.seed), key1 = static_cast<uint32_t>(random.seed >> 32);
#pragma omp simd
  for (int64_t i = 0; i < blocks; ++i) {
    const Block x = philox_block({start + static_cast<uint32_t>(i), row, low, purpose}, key0, key1);
    room[4 * i] = x.a;
    room[4 * i + 1] = x.b;
    room[4 * i + 2] = x.c;
    room[4 * i + 3] = x.d;
  }
  return room + first % 4;
}

// Uniform numbers are the top 24 bits, so `uniform >= p` is a comparison of integers: of word >> 8 with this.
inline uint32_t threshold_of(double p) {
  const double scaled = p * 0x1p24;
  const auto whole = static_cast<uint32_t>(scaled);
  return whole + (static_cast<double>(whole) < scaled ? 1U : 0U);
}
inline double uniform_of(uint32_t word) { return (word >> 8) * 0x1p-24; }

}  // namespace train
