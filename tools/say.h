// SPDX-License-Identifier: MIT
//
// A supervisor's own lines on stderr. Whoever read them may have left (`lockstep run ... 2>&1 | head`), which must not
// end the supervisor and leave the job alone: fmt::print would throw, this does not care.

#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace lockstep {

template <class... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  const std::string line = fmt::format(text, std::forward<Args>(args)...);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace lockstep
