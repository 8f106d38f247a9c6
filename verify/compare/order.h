// SPDX-License-Identifier: MIT
//
// The order in which a training computes what a dump holds, so that the first difference in it is where things went
// wrong and the others are its consequences: within a step the batch, activations from the first layer to the last, the
// loss, gradients from the last layer to the first, the norm, loss scale and learning rate, the optimizer's state, and
// the parameters that are computed from it.
//
// Names tell the place of a layer: numbers are compared as numbers, and the words that common models use for their
// parts (nanoGPT, Llama, GPT-NeoX, Megatron) have their places. Words that are not known stand between, in the order of
// letters.

#pragma once

#include <string>

namespace lockstep::verify {

// "grad" of "grad/transformer.h.0.ln_1.weight"; metrics have their own name.
std::string category_of(const std::string& name);

// Is `a` computed before `b`, within one step? A strict weak order on names of tensors and metrics.
bool computed_before(const std::string& a, const std::string& b);

}  // namespace lockstep::verify
