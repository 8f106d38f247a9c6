// SPDX-License-Identifier: MIT
//
// docs/findings.md, which is built in, so that a verdict can be looked up where it was given.

#pragma once

#include <string>

namespace lockstep {

// The section about a kind; empty when there is none.
std::string findings_section(const std::string& kind);

}  // namespace lockstep
