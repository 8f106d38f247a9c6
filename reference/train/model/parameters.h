// SPDX-License-Identifier: MIT
//
// The parameters of a model, in forward order, with the names and shapes of a nanoGPT state dict. Weights are
// [outputs, inputs]. V vocabulary, T positions, C width, d = C / heads, K key/value heads, E experts:
//
//   transformer.wte.weight [V, C]                         rows cut over tp (vocabulary-parallel)
//   transformer.wpe.weight [T, C]                         only with learned positions
//   transformer.h.I.ln_1.weight, .bias [C]
//   transformer.h.I.attn.c_attn.weight [C + 2 K d, C], .bias      rows cut over tp, by heads: queries, keys, values
//   transformer.h.I.attn.c_proj.weight [C, C], .bias [C]          columns of the weight cut over tp, by heads
//   transformer.h.I.ln_2.weight, .bias [C]
//   transformer.h.I.mlp.c_fc.weight [4 C, C], .bias               rows cut over tp
//   transformer.h.I.mlp.c_proj.weight [C, 4 C], .bias [C]         columns of the weight cut over tp
//     or, with experts:  .mlp.router.weight [E, C] and .mlp.experts.e.c_fc..., .mlp.experts.e.c_proj...: whole experts,
//     E / ep of them on a rank
//   transformer.ln_f.weight, .bias [C]
//   lm_head.weight [V, C]                                 only untied; rows cut over tp

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reference/train/core/module.h"
#include "reference/train/model/config.h"

namespace train {

class Parameters {
 public:
  // All that this rank would hold if it had all layers. `index` numbers the parameters of the whole model, experts of
  // other ranks included, so that it is the same in every layout.
  Parameters(const Config& config, const Groups& groups);

  Parameter& operator[](const std::string& name) const;  // must exist
  const std::vector<std::unique_ptr<Parameter>>& all() const { return all_; }

 private:
  std::vector<std::unique_ptr<Parameter>> all_;
};

// nanoGPT's first values of this rank's part, written to `into` (any floating type; local shape). They depend on the
// seed and on where an element stands in the whole tensor, not on the cut.
void initialise(cudaStream_t stream, const Config& config, const Parameter& parameter, View into);

// "transformer.h.3.attn.c_proj.weight" for (3, "attn.c_proj.weight"); the layer is the one whose parameters are used.
std::string layer_parameter(const Config& config, int64_t layer, const std::string& rest);

}  // namespace train
