// SPDX-License-Identifier: MIT
//
// What a model is: its sizes and choices, as the command line names them. Nothing here depends on how it is spread over
// ranks but heads_of and padded_vocab, which say how heads and vocabulary are cut for tensor parallelism.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/train/core/tensor.h"

namespace train {

enum class Positions {
  learned,  // a table of vectors, added to the tokens' (wpe)
  rotary,   // queries and keys are turned by an angle that grows with the position (2104.09864)
};

struct Config {
  int64_t layers = 4, heads = 4;
  int64_t kv_heads = 0;  // 0: as many as heads; fewer: groups of query heads share keys and values (2305.13245)
  int64_t width = 256, vocab = 256, seq = 128;
  int64_t vocab_multiple = 1;  // the vocabulary is padded to a multiple of this times the tensor-parallel size
  Positions positions = Positions::learned;
  bool tied = true;                 // lm_head is wte
  double dropout = 0;               // of embeddings, attention probabilities, and what attention and MLP add
  bool share_layers = false;        // layers 2j and 2j + 1 have one set of parameters, named h.2j
  std::vector<std::string> freeze;  // shell patterns of parameter names: no gradient, no update
  int64_t experts = 0;              // 0: a dense MLP in each layer
  int64_t top_k = 2;                // experts that a token goes to
  double capacity = 0;              // of an expert, times tokens x top_k / experts of a sequence; 0: nothing is dropped
  double aux_loss = 0.01;           // factor of the load-balancing loss
  Dtype dtype = Dtype::f32;
  uint64_t seed = 1337;

  int64_t head_width() const { return width / heads; }
  int64_t key_value_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t hidden() const { return 4 * width; }
  // Embedding, two for each layer (attention, MLP), head.
  int modules() const { return static_cast<int>(2 * layers) + 2; }
  // The layer whose parameters layer `layer` uses.
  int64_t parameter_layer(int64_t layer) const { return share_layers ? layer - layer % 2 : layer; }
};

// Why there is no such model, in one sentence; empty where there is one.
std::string config_error(const Config& config);

// Vocabulary with its padding, over all tensor-parallel ranks.
int64_t padded_vocab(const Config& config, int tp_size);

// The heads of one tensor-parallel rank. With fewer key/value heads than ranks, neighbouring ranks hold the same one.
struct Heads {
  int64_t queries = 0, keys = 0;  // how many
  int64_t width = 0;
  int64_t first_query = 0, first_key = 0;
  int64_t columns() const { return (queries + 2 * keys) * width; }  // of c_attn's output
};
Heads heads_of(const Config& config, int tp_rank, int tp_size);

}  // namespace train
