// SPDX-License-Identifier: MIT
//
// Which modules of the model a pipeline stage holds. Layers are cut into stages * chunks equal pieces; piece i goes to
// stage i % stages; the embedding is part of the first, the head of the last.

#pragma once

#include <vector>

namespace train {

// The modules of each chunk of a stage by their numbers in the whole model (0 the embedding, 1 + 2 i and 2 + 2 i those
// of layer i, last the head). layers % (stages * chunks) == 0.
std::vector<std::vector<int>> modules_of_stage(int layers, int stage, int stages, int chunks);

}  // namespace train
