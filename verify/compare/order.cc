// SPDX-License-Identifier: MIT

#include "verify/compare/order.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace lockstep::verify {
namespace {

constexpr int kOther = 50;
constexpr int kAfterItsParts = 1000;

int category_place(const std::string& category) {
  static const std::vector<std::string> order = {"batch",      "tokens", "act",  "loss",   "grad",
                                                 "loss_scale", "norm",   "lr",   "adam_m", "adam_v",
                                                 "momentum",   "master", "param"};
  return static_cast<int>(std::find(order.begin(), order.end(), category) - order.begin());
}

// Parts of a model in the order in which a token passes them. Words that never stand beside each other may share a
// place.
int word_place(const std::string& word) {
  static const std::map<std::string, int> places = [] {
    const std::vector<std::vector<const char*>> order = {
        {"wte", "embed_tokens", "tok_embeddings", "word_embeddings", "embed_in", "embed", "embedding", "embeddings"},
        {"wpe", "embed_positions", "position_embeddings"},
        {"drop"},
        {"h", "layers", "layer", "blocks", "block"},
        {"ln_1", "ln1", "norm1", "input_layernorm", "attention_norm"},
        {"attn", "self_attn", "self_attention", "attention"},
        {"c_attn", "qkv", "qkv_proj", "linear_qkv", "query_key_value"},
        {"q_proj", "wq", "query"},
        {"k_proj", "wk", "key"},
        {"v_proj", "wv", "value"},
        {"heads"},
        {"ln_2", "ln2", "norm2", "post_attention_layernorm", "pre_mlp_layernorm", "ffn_norm"},
        {"mlp", "feed_forward", "ffn", "moe"},
        {"router", "gate"},
        {"experts"},
        {"c_fc", "fc1", "linear_fc1", "gate_proj", "w1", "dense_h_to_4h"},
        {"up_proj", "w3"},
        {"gelu", "act", "act_fn"},
        {"c_proj", "o_proj", "wo", "out_proj", "linear_proj", "dense", "fc2", "linear_fc2", "down_proj", "w2",
         "dense_4h_to_h"},
        {"ln_f", "norm", "final_norm", "final_layernorm", "final_layer_norm"},
        {"lm_head", "embed_out", "output_layer", "output", "head", "logits"},
    };
    std::map<std::string, int> out;
    for (size_t place = 0; place < order.size(); place++)
      for (const char* each : order[place]) out[each] = static_cast<int>(place) + (place >= 19 ? kOther : 0);
    return out;
  }();
  const auto found = places.find(word);
  return found == places.end() ? kOther : found->second;
}

// Words that only wrap a model; with them, a head outside of the wrapper would come before the layers inside.
bool is_wrapper(const std::string& word) {
  for (const char* each : {"transformer", "model", "module", "gpt", "gpt_neox", "decoder", "language_model",
                           "_orig_mod", "_fsdp_wrapped_module"})
    if (word == each) return true;
  return false;
}

using Component = std::tuple<int, unsigned long long, std::string>;

// `output`: what a module gives comes after what its parts give.
std::vector<Component> place_of(const std::string& name, bool output) {
  std::vector<Component> place;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find_first_of("./", begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    begin = end + 1;
    const bool digits = !word.empty() && word.size() < 18 && word.find_first_not_of("0123456789") == std::string::npos;
    if (digits)
      place.emplace_back(kOther, std::stoull(word), "");
    else if (!is_wrapper(word))
      place.emplace_back(word_place(word), 0, word);
  }
  if (output) place.emplace_back(kAfterItsParts, 0, "");
  return place;
}

}  // namespace

std::string category_of(const std::string& name) { return name.substr(0, name.find('/')); }

bool computed_before(const std::string& a, const std::string& b) {
  const std::string left = category_of(a), right = category_of(b);
  if (left != right) return std::pair(category_place(left), left) < std::pair(category_place(right), right);
  const bool backward = left == "grad", output = left == "act";
  const std::vector<Component> x = place_of(a.substr(left.size()), output),
                               y = place_of(b.substr(right.size()), output);
  if (x != y) return backward ? y < x : x < y;
  return a < b;
}

}  // namespace lockstep::verify
