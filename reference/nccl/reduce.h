// SPDX-License-Identifier: MIT
//
// Element-wise reduction of several ranks' buffers, from the first input to the last, so that whoever does it gets the
// same bits. What order the inputs come in is the algorithm's affair; see algorithm.h.
//
// NCCL's arithmetic: floating-point averages, and operators made by ncclRedOpCreatePreMulSum, multiply every input by a
// scalar before summing (for averages the rounded 1/n); integer averages sum with wrap-around and divide once, toward
// zero; min and max ignore NaNs where the other side is a number; 16-bit types are rounded after every step, 8-bit ones
// computed in fp16 and rounded after every step.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "interpose/abi/nccl.h"

namespace lockstep::nccl {

// What NCCL's operators come down to.
enum class Arithmetic : uint8_t { sum, prod, max, min, scaled_sum, divided_sum };

struct Reduction {
  ncclDataType_t dtype;
  Arithmetic arithmetic;
  int divisor = 1;  // of divided_sum
};

struct Input {
  const std::byte* data;
  uint64_t scale = 0;  // for scaled_sum: a value of the type, in the first bytes
};

bool is_integer(ncclDataType_t dtype);
// 1/n as the type has it, for Input::scale.
uint64_t reciprocal_bits(ncclDataType_t dtype, int n);

// dst[i] = all inputs' [i], reduced; dst may be one of the inputs, but not overlap one otherwise.
void reduce(const Reduction& how, std::byte* dst, const std::vector<Input>& inputs, size_t count);

// The steps of that, for orders that are no chain: an input as it enters the sum, two partial results to one, and what
// is left to do at the end.
void enter(const Reduction& how, std::byte* dst, const Input& input, size_t count);
void combine(const Reduction& how, std::byte* dst, const std::byte* a, const std::byte* b, size_t count);
void finish(const Reduction& how, std::byte* dst, size_t count);

}  // namespace lockstep::nccl
