// SPDX-License-Identifier: MIT
//
// The modules of the model (module.h), each in a file of its own, and what attention and MLP have in common: they add
// to the stream of activations, x + dropout(f(norm(x))).

#pragma once

#include <memory>

#include "reference/train/model/context.h"
#include "reference/train/model/parameters.h"

namespace train {

std::unique_ptr<Module> make_embedding(const Context& context, const Parameters& parameters);
std::unique_ptr<Module> make_attention(const Context& context, const Parameters& parameters, int64_t layer);
std::unique_ptr<Module> make_mlp(const Context& context, const Parameters& parameters, int64_t layer);
std::unique_ptr<Module> make_experts(const Context& context, const Parameters& parameters, int64_t layer);
std::unique_ptr<Module> make_head(const Context& context, const Parameters& parameters);

// Dropout of activations [outer rows, C], in training. Its own backward pass; `out` may be `in`.
bool drops(const Context& context, const Batch& batch);
void drop(const Context& context, const Batch& batch, RandomUse use, int64_t layer, View out, View in);

// x + dropout(y), which takes the place of y.
View add_to_stream(const Context& context, const Batch& batch, RandomUse use, int64_t layer, View x, View y);
// The gradient of y.
View add_to_stream_backward(const Context& context, const Batch& batch, RandomUse use, int64_t layer, View grad,
                            Arena& arena);

}  // namespace train
