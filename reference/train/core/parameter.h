// SPDX-License-Identifier: MIT
//
// Parameters by name, as a nanoGPT state dict has them, and what every part may know of one.
//
// Three parties meet here. The model says which parameters exist and uses `value` and `grad`. Tensor, pipeline and
// expert parallelism say which part of the global tensor this rank holds (`cut`). Data parallelism, ZeRO and FSDP
// decide where `value` and `grad` lie, and when they are there at all.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/train/core/tensor.h"

namespace train {

struct Parameter {
  std::string name;             // "transformer.h.0.attn.c_attn.weight"
  std::vector<int64_t> global;  // shape of the whole tensor, vocabulary padding left out
  int64_t index = 0;            // number among all parameters of the whole model: random numbers, the order everywhere
  // The part this rank holds: ranges [begin, end) along dimension `cut_dim`, in this order (three for c_attn, whose
  // rows are the queries', keys' and values'). No ranges: the whole tensor. A range may end beyond the global size:
  // vocabulary padding, whose rows are zero, get no gradient and appear in no file.
  int cut_dim = 0;
  std::vector<std::array<int64_t, 2>> cut;
  std::vector<int64_t> local;  // shape of the part

  enum class Init { normal, zeros, ones } init = Init::normal;
  double init_std = 0.02;
  bool decay = false;   // weight decay applies (matrices and embeddings)
  bool frozen = false;  // takes part in the forward pass only; has no gradient and no optimizer state
  // Over which axes of the mesh gradients are partial sums beyond the data-parallel ones ("" or "tp": norms and row
  // biases under sequence parallelism), and over which the parameter is replicated though its group has several ranks
  // (they count once in the norm and are owned once in dumps).
  bool partial_over_tp = false;
  bool replicated_over_tp = true;
  bool expert = false;  // gradients are summed over edp instead of dp x cp
  // Elements [begin, end) of the part, ascending. `elsewhere`: another rank of the model has them too, and it is the
  // one that counts them in norms and owns them in dumps. `partial_over_kv`: their gradient is a part of a sum over the
  // ranks that share key/value heads (Groups::kv).
  using Elements = std::vector<std::array<int64_t, 2>>;
  Elements elsewhere, partial_over_kv;

  int64_t count = 0;          // elements of the part
  View value;                 // compute dtype; valid between the strategy's before_* and after_* calls (strategy.h)
  View grad;                  // wide(dtype); where this micro-batch's gradient goes
  bool grad_written = false;  // this micro-batch has written `grad`

  // Where the next contribution goes: the first of a micro-batch overwrites.
  Into gradient() {
    const Into into{grad, grad_written};
    grad_written = true;
    return into;
  }
};

// What of elements [begin, begin + count) lies in `ranges`, or, with `outside`, in none of them; relative to `begin`.
Parameter::Elements overlap(int64_t begin, int64_t count, const Parameter::Elements& ranges, bool outside = false);

}  // namespace train
