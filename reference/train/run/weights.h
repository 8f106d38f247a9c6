// SPDX-License-Identifier: MIT
//
// First values of parameters: made by the seed, or read from a file of whole tensors with nanoGPT's names, as
// --save-init writes one. A rank takes from a whole tensor the part it holds.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "reference/train/core/device.h"
#include "reference/train/core/parameter.h"
#include "reference/train/model/config.h"

namespace train {

// Writes all parameters of the model, however many ranks it would be spread over. Throws Refusal.
void save_init(const std::string& path, const Config& config, int device);

// Whether the file has the tensors of the model, of its shapes, and no others. Throws Refusal.
void check_init(const std::string& path, const Config& config);

// Enqueues the first values of a parameter's part. `path` may be empty. Throws Refusal, at once for a file that is not
// one, and when it is called for a tensor that is missing or has another shape.
std::function<void(const Parameter&, View)> initial_values(const std::string& path, const Config& config,
                                                           const Stream& stream);

}  // namespace train
