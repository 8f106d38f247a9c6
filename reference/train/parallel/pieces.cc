// SPDX-License-Identifier: MIT

#include "reference/train/parallel/pieces.h"

namespace train {

std::vector<std::vector<int>> modules_of_stage(int layers, int stage, int stages, int chunks) {
  const int pieces = stages * chunks, each = layers / pieces;
  std::vector<std::vector<int>> held;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int piece = chunk * stages + stage;
    std::vector<int>& modules = held.emplace_back();
    if (piece == 0) modules.push_back(0);
    for (int module = 1 + 2 * each * piece; module < 1 + 2 * each * (piece + 1); ++module) modules.push_back(module);
    if (piece == pieces - 1) modules.push_back(2 * layers + 1);
  }
  return held;
}

}  // namespace train
