// SPDX-License-Identifier: MIT

#include "reference/train/model/config.h"

#include <algorithm>

namespace train {

static std::string equation(const char* what, int64_t a, const char* relation, int64_t b) {
  return std::string(what) + ", but " + std::to_string(a) + relation + std::to_string(b);
}

std::string config_error(const Config& c) {
  const auto indivisible = [](int64_t a, int64_t b) { return b <= 0 || a % b != 0; };
  if (std::min({c.layers, c.heads, c.width, c.vocab, c.seq, c.vocab_multiple}) < 1)
    return "layers, heads, width, vocabulary, sequence length and the vocabulary's multiple must be at least 1";
  if (indivisible(c.width, c.heads)) return equation("width must be a multiple of heads", c.width, " % ", c.heads);
  if (c.kv_heads < 0 || indivisible(c.heads, c.key_value_heads()))
    return equation("heads must be a multiple of kv-heads", c.heads, " % ", c.kv_heads);
  if (c.positions == Positions::rotary && c.head_width() % 2 != 0)
    return equation("rotary positions turn pairs, so width / heads must be even", c.width, " / ", c.heads);
  if (!(c.dropout >= 0 && c.dropout < 1)) return "dropout must be in [0, 1), but is " + std::to_string(c.dropout);
  // The limits of the random numbers' counter (kernels.h): 12 bits of layer, 20 of an attended position.
  if (c.layers > 4096) return equation("at most 4096 layers can be told apart by dropout", c.layers, " > ", 4096);
  if (c.seq > 1 << 20) return equation("at most 2^20 positions can be told apart by dropout", c.seq, " > ", 1 << 20);
  if (c.experts < 0) return equation("experts must be at least 0", c.experts, " < ", 0);
  if (c.experts > 0 && (c.top_k < 1 || c.top_k > c.experts))
    return equation("top-k must be from 1 to the number of experts", c.top_k, " of ", c.experts);
  return "";
}

int64_t padded_vocab(const Config& config, int tp_size) {
  const int64_t multiple = config.vocab_multiple * tp_size;
  return (config.vocab + multiple - 1) / multiple * multiple;
}

Heads heads_of(const Config& config, int tp_rank, int tp_size) {
  Heads heads;
  heads.width = config.head_width();
  heads.queries = config.heads / tp_size;
  heads.first_query = tp_rank * heads.queries;
  heads.keys = std::max<int64_t>(config.key_value_heads() / tp_size, 1);
  heads.first_key = tp_rank * config.key_value_heads() / tp_size;
  return heads;
}

}  // namespace train
