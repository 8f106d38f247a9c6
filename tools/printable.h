// SPDX-License-Identifier: MIT
//
// Names come from files that somebody else wrote. On a terminal a control character in one could hide the verdict or
// fake another line of it, so that text for people shows such characters and obeys none.

#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Control characters, those beyond ASCII too,
// marks that turn the direction of writing, and bytes that are not UTF-8, as \n, \x1b or \u202e. All else as it is.
std::string printable(std::string_view text);

}  // namespace lockstep
