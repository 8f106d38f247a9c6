// SPDX-License-Identifier: MIT
//
// Who this process is: on which host, of which job, which rank, started by whom, with which settings. For the header
// and the environment text of a trace.

#pragma once

#include "interpose/shim/config.h"
#include "interpose/trace/format.h"

namespace lockstep::shim {

void describe_process(trace::FileHeader& header, const Config& config, bool tsc);  // all but clocks and stacks
void write_environment();  // one text record: "environment", then NAME=value lines

}  // namespace lockstep::shim
