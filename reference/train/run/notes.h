// SPDX-License-Identifier: MIT
//
// What was asked for on the command line and does nothing in this layout. It is no mistake: whoever compares layouts
// changes one flag and leaves the others. But nobody should believe that a flag acts when it does not, so each is told
// in a sentence. So is a schedule that has fewer micro-batches than it needs to be what its name promises.

#pragma once

#include <string>
#include <vector>

#include "reference/train/run/launch.h"
#include "reference/train/run/options.h"

namespace train {

// Of options that complete_options has seen.
std::vector<std::string> notes_on(const Options& options, const Launch& launch);

}  // namespace train
