// SPDX-License-Identifier: MIT
//
// Activations as they are made, for whoever wants to see them (run/activations.h writes them to dumps). A point has the
// name of the nanoGPT module whose output it is, so that a forward hook on each module of a PyTorch model sees the
// same:
//
//   transformer.drop                                     embeddings, after dropout
//   transformer.h.I.ln_1, .attn.c_attn                   queries, keys and values before they are turned
//   transformer.h.I.attn.heads                           what the heads mix, side by side (no module of nanoGPT's)
//   transformer.h.I.attn.c_proj, .attn                   before and after dropout
//   transformer.h.I.ln_2, .mlp.c_fc, .mlp.gelu, .mlp.c_proj, .mlp      with experts only .ln_2, .mlp.router and .mlp
//   transformer.h.I                                      the stream after the layer
//   transformer.ln_f, lm_head                            the latter are the logits
//
// All are [sequences, positions, columns] of the whole step; a rank has some rows of its micro-batches, and of the
// outputs between two matrices that tensor parallelism cuts some columns.

#pragma once

#include <array>
#include <string>
#include <vector>

#include "reference/train/model/context.h"

namespace train {

// This rank's part of an activation of one micro-batch.
struct Activation {
  std::string name;
  View values;        // [rows, local columns]; valid in stream order until the next enqueued work
  int64_t first_row;  // of the micro-batch's rows on this rank
  int64_t width;      // columns of the whole
  std::vector<std::array<int64_t, 2>> columns;  // of these, the ranges at hand; they may end in vocabulary padding
  bool shared;                                  // other ranks of the tensor-parallel group have some of it too
};

class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual bool wants(const std::string& name) const = 0;
  virtual void see(int micro_batch, const Activation& activation) = 0;
};

// Every point of a model, in the order of the forward pass.
std::vector<std::string> activation_names(const Config& config);

// What modules call. `layer` < 0: `rest` is the whole name. Nothing happens unless somebody watches.
// Rows between tensor-parallel regions, with all columns.
void show_rows(const Context& context, const Batch& batch, int64_t layer, const char* rest, View values);
// The outputs of the layer with this weight, or the inputs of the one after it: all rows, columns as the weight is cut.
void show_outputs(const Context& context, int64_t layer, const char* rest, View values, const Parameter& weight);
void show_inputs(const Context& context, int64_t layer, const char* rest, View values, const Parameter& weight);

}  // namespace train
