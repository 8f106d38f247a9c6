// SPDX-License-Identifier: MIT
//
// The 64-bit identity of a communicator, equal on all its ranks, as NCCL itself computes it (commHash in its INFO lines,
// in RAS and in its NVTX payloads), so that traces can be joined with those. Same from 2.18 to 2.30: a hash of the 128-byte
// unique id; for a child of ncclCommSplit, of the parent's hash, the number of the split on that parent (from 1) and the
// colour. The hash depends on where its input is divided, so the children feed three pieces, one after the other.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep::abi {

class CommHash {
 public:
  void eat(const void* bytes, size_t size) {
    const char* at = static_cast<const char*>(bytes);
    a_ ^= size;
    for (size_t left = size; left != 0;) {
      a_ += b_;
      b_ ^= a_;
      a_ ^= a_ >> 31;
      a_ *= 0x9de62bbc8cef3ce3ull;
      b_ ^= b_ >> 32;
      b_ *= 0x485cd6311b599e79ull;
      const size_t piece = left < sizeof(uint64_t) ? left : sizeof(uint64_t);
      uint64_t word = 0;
      std::memcpy(&word, at, piece);
      a_ += word;
      at += piece;
      left -= piece;
    }
  }
  uint64_t digest() const {
    uint64_t h = a_;
    h ^= h >> 31;
    h *= 0xbac3bd562846de6bull;
    h += b_;
    h ^= h >> 32;
    h *= 0x995a187a14e7b445ull;
    return h;
  }

 private:
  uint64_t a_ = 1, b_ = 1;
};

inline uint64_t comm_hash_of_unique_id(const void* id, size_t size = 128) {
  CommHash hash;
  hash.eat(id, size);
  return hash.digest();
}

// split_count: 1 for the first split (or shrink, with colour 0) of this parent. Every rank of the parent counts alike,
// because splitting is collective over the parent, ranks that pass NCCL_SPLIT_NOCOLOR included.
inline uint64_t comm_hash_of_child(uint64_t parent, int32_t split_count, int32_t color) {
  CommHash hash;
  hash.eat(&parent, sizeof parent);
  hash.eat(&split_count, sizeof split_count);
  hash.eat(&color, sizeof color);
  return hash.digest();
}

}  // namespace lockstep::abi
