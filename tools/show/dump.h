// SPDX-License-Identifier: MIT
//
// `lockstep show FILE.safetensors`: the tensors of one file, where they lie in the global ones, and what their values
// are like.

#pragma once

#include <string>

namespace lockstep {

bool is_tensor_file(const std::string& path);
int show_tensor_file(const std::string& path, bool json);  // the exit status

}  // namespace lockstep
