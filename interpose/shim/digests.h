// SPDX-License-Identifier: MIT
//
// LOCKSTEP_DIGEST: what went into a collective and what came out of it, as 64 bits each, so that a rank whose result differs
// from its peers' can be named. The bytes are right only at one moment, when the stream has reached the operation (input)
// and when it has passed it (output), so they are read by host functions that are put into the stream in front of it and
// behind it. Only memory that the host can read: whatever the driver calls device memory is counted and left alone.

#pragma once

#include <cstdint>

#include "interpose/shim/calls.h"
#include "interpose/shim/digest_job.h"

namespace lockstep::shim {

// False when this operation's digests are not wanted.
bool describe_digest(DigestJob& job, abi::Fn fn, const Call& call, const CallArgs& args, uint64_t seq);
void digest_input(const DigestJob& job);
void digest_output(const DigestJob& job);

}  // namespace lockstep::shim
