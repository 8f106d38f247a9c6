// SPDX-License-Identifier: MIT
//
// What the shim says on stderr: rarely, in one sentence, in one write so that lines of many ranks do not mix.

#pragma once

namespace lockstep::shim {

void report(const char* sentence);  // "lockstep: <sentence>\n"; errno untouched

}  // namespace lockstep::shim
