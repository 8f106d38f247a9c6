// SPDX-License-Identifier: MIT
//
// The threads that share one kernel's blocks. How a kernel is cut into blocks depends on its sizes alone and every
// block writes what is its own, so the bits do not depend on who ran which block, nor on how many there were to run
// them.

#pragma once

#include <cstddef>
#include <cstdint>

#include "reference/train/kernels/vector.h"

namespace train {

// Runs body(data, block) for every block in [0, blocks), on this thread and those set_threads allows, and returns when
// all have run.
void run_blocks(int64_t blocks, void (*body)(void* data, int64_t block), void* data);

// The same for a body of our own, as vector code.
template <class Body>
void for_blocks(int64_t blocks, const Body& body) {
  const auto run = [](void* data, int64_t block) { vectorised([=] { (*static_cast<const Body*>(data))(block); }); };
  run_blocks(blocks, run, const_cast<void*>(static_cast<const void*>(&body)));
}

// body(begin, end) for pieces of [0, count), `piece` long but the last.
template <class Body>
void for_pieces(int64_t count, int64_t piece, const Body& body) {
  for_blocks((count + piece - 1) / piece, [&](int64_t block) {
    const int64_t begin = block * piece;
    body(begin, begin + piece < count ? begin + piece : count);
  });
}

// This thread's scratch memory, kScratch bytes, aligned to 64: what a block computes on between reading and writing. It
// is taken when a thread runs its first kernel and is all that kernels use beyond their views.
inline constexpr size_t kScratch = size_t{2} << 20;
void* scratch();

}  // namespace train
