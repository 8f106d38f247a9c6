// SPDX-License-Identifier: MIT
//
// Settings come from the environment and, as NCCL reads them, from lines NAME=value of a file: NCCL_CONF_FILE, or
// without that ~/.nccl.conf, and then /etc/nccl.conf. The environment wins, then the first file.

#pragma once

namespace lockstep::nccl {

const char* setting(const char* name);  // nullptr: not set
int int_setting(const char* name, int otherwise);

}  // namespace lockstep::nccl
