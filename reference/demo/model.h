// SPDX-License-Identifier: MIT
//
// A character model small enough to read in one sitting: the kContext characters before a position are looked up in an
// embedding, their vectors stand side by side, one tanh layer and a softmax guess the character that follows.
//
//   x [B, C*E] = embedding[context]     h [B, H] = tanh(x * hidden + hidden_bias)     logits [B, V] = h * head +
//   head_bias
//
// The mathematics runs on the host, in plain loops, so that the program needs no kernels; everything between ranks runs
// as in any CUDA program. Gradients are sums over samples, not means: they are divided once, by the number of samples
// of all ranks, after they have been added up.

#pragma once

#include <array>
#include <functional>
#include <vector>

#include "reference/demo/data_loader.h"

namespace demo {

inline constexpr int kEmbedding = 16;
inline constexpr int kHidden = 64;

struct Parameter {
  std::vector<float> value;
  std::vector<float> grad;
  std::vector<float> momentum;  // Adam's two running means
  std::vector<float> variance;
};

struct Model {
  int vocabulary = 0;
  Parameter embedding;    // [V, E]
  Parameter hidden;       // [C*E, H]
  Parameter hidden_bias;  // [H]
  Parameter head;         // [H, V]
  Parameter head_bias;    // [V]
  std::array<Parameter*, 5> parameters() { return {&embedding, &hidden, &hidden_bias, &head, &head_bias}; }
};
Model make_model(int vocabulary, unsigned seed);

// What forward leaves for backward.
struct Activations {
  std::vector<float> x, h, probabilities;
};

// Returns the summed cross entropy of the batch.
double forward(const Model& model, const Batch& batch, Activations& activations);

// Fills the gradients, last layer first, and calls ready(index into parameters()) as soon as one is complete, so that
// its all-reduce runs while the rest is computed.
void backward(Model& model, const Batch& batch, const Activations& activations, const std::function<void(int)>& ready);

// One Adam step (step counts from 1); the gradients are multiplied by scale first.
void adam(Model& model, int step, float learning_rate, float scale);

}  // namespace demo
