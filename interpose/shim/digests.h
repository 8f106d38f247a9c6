// SPDX-License-Identifier: MIT
//
// LOCKSTEP_DIGEST: what went into a collective and what came out of it, as 64 bits each, so that a rank whose result
// differs from its peers' can be named. The bytes are right only at one moment, when the stream has reached the
// operation (input) and when it has passed it (output), so they are read by host functions that are put into the stream
// in front of it and behind it. Only memory that the host can read: what the driver calls device memory and the kernel
// will not read for us is counted and left alone.

#pragma once

#include <cstdint>

#include "interpose/shim/calls.h"
#include "interpose/shim/digest_job.h"

namespace lockstep::shim {

// Of an operation on a stream that is free. Its `comm` is 0 when the digests of this one are not wanted.
DigestJob describe_digest(abi::Fn fn, const Comm& comm, uint64_t sendbuff, uint64_t recvbuff, uint64_t count, int32_t dtype,
                          int32_t root, uint64_t stream, uint64_t call, uint64_t seq);
void digest_input(DigestJob job);
void digest_output(DigestJob job);

}  // namespace lockstep::shim
