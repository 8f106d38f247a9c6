// SPDX-License-Identifier: MIT
//
// The buffers of one operation whose digests are wanted; see digests.h.

#pragma once

#include <cstdint>

namespace lockstep::shim {

// What is needed to digest an operation's buffers; kept by a call, or by a member of a group until its end.
struct DigestJob {
  uint64_t input, output;              // addresses; 0 = none
  uint64_t input_bytes, output_bytes;
  uint64_t call, seq, stream;
  uint32_t comm;                       // serial
  uint16_t fn;
};

}  // namespace lockstep::shim
