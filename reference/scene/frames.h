// SPDX-License-Identifier: MIT
//
// The real functions behind `in FUNCTION { ... }`. They are plain C names, so that a stack shows exactly what the file
// says.

#pragma once

#include <functional>
#include <string>

namespace lockstep::scene {

// Runs the body inside the function of that name (one of scenario::frame_names()).
void run_in(const std::string& function, const std::function<void()>& body);

}  // namespace lockstep::scene
