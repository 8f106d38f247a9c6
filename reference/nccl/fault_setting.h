// SPDX-License-Identifier: MIT
//
// LOCKSTEP_HOST_FAULT, read; see fault.h for what it means.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>

#include "interpose/abi/functions.h"

namespace lockstep::nccl {

struct Fault {
  enum class Action { skip, delay, reorder, count, dtype, root, op, corrupt, fail, kill, stop };
  Action action = Action::skip;
  int64_t rank = -1;
  uint64_t call = 0;  // from 1
  abi::Fn fn = abi::Fn::none;
  int64_t value = -1;  // also of element and code
  int bit = -1;
  double seconds = -1;
  std::atomic<uint64_t> seen{0};
};

struct FaultSetting {
  std::deque<Fault> faults;
  std::string wrong;  // a sentence, if it cannot be read
};

// Never fails by itself: whoever begins asks for `wrong`.
FaultSetting& fault_setting();
void read_faults(const std::string& text, FaultSetting& setting);

}  // namespace lockstep::nccl
