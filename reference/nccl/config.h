// SPDX-License-Identifier: MIT
//
// What a caller's ncclConfig_t says, as far as it matters here, read by NCCL's rules: any version's struct is taken
// (its size and version say which fields count), nonsense is refused field by field, and the environment has the last
// word.

#pragma once

#include <string>

#include "interpose/abi/nccl.h"

namespace lockstep::nccl {

struct CommConfig {
  bool blocking = true;
  bool split_share = false;
  bool shrink_share = false;
  std::string name;
};

// config == nullptr: as `otherwise`. ncclInvalidArgument is told by warn().
ncclResult_t read_config(const ncclConfig_t* config, const CommConfig& otherwise, CommConfig& out);

}  // namespace lockstep::nccl
