// SPDX-License-Identifier: MIT
//
// 64 bits over the bytes of a buffer, for telling whether two ranks got the same result. Not cryptographic: it has to notice
// accidents. Four lanes of eight bytes each, so that it runs at the speed of memory; the tail is padded with zeros, and the
// length is part of it.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::trace {

inline uint64_t digest_of(const void* bytes, size_t size) {
  constexpr uint64_t kOdd[4] = {0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full, 0x165667b19e3779f9ull, 0xd6e8feb86659fd93ull};
  uint64_t lane[4] = {size, ~static_cast<uint64_t>(size), 0x5851f42d4c957f2dull, 0x14057b7ef767814full};
  const auto* at = static_cast<const unsigned char*>(bytes);
  const auto mix = [&](const unsigned char* block) {
    for (unsigned i = 0; i < 4; i++) {
      uint64_t word;
      __builtin_memcpy(&word, block + 8 * i, 8);
      lane[i] = (lane[i] ^ word) * kOdd[i];
      lane[i] ^= lane[i] >> 29;
    }
  };
  size_t left = size;
  for (; left >= 32; left -= 32, at += 32) mix(at);
  if (left) {
    unsigned char last[32] = {};
    __builtin_memcpy(last, at, left);
    mix(last);
  }
  uint64_t sum = 0;
  for (unsigned i = 0; i < 4; i++) {
    sum = (sum ^ lane[i]) * kOdd[i];
    sum ^= sum >> 32;
  }
  return sum;
}

}  // namespace lockstep::trace
