// SPDX-License-Identifier: MIT
//
// Element-wise reduction of several ranks' buffers, always in rank order, so that whoever does it gets the same bits.
//
// NCCL's arithmetic: floating-point averages multiply every input by the rounded 1/n before summing; integer averages
// sum with wrap-around and divide once, toward zero; min and max ignore NaNs where the other side is a number; half
// types are rounded after every step.

#pragma once

#include <cstddef>
#include <vector>

#include "interpose/abi/nccl.h"

namespace lockstep::nccl {

struct Reduction {
  ncclDataType_t dtype;
  ncclRedOp_t op;
  int nranks;
};

bool can_reduce(ncclDataType_t dtype);

// dst[i] = op over all inputs of input[i]; dst may be one of the inputs, but not overlap one otherwise.
void reduce(const Reduction& how, std::byte* dst, const std::vector<const std::byte*>& inputs, size_t count);

}  // namespace lockstep::nccl
