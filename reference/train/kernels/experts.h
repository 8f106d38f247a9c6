// SPDX-License-Identifier: MIT
//
// What is computed for a mixture of experts besides the experts' own layers. The rules are those of kernels.h.

#pragma once

#include <cuda_runtime.h>

#include "reference/train/core/tensor.h"

namespace train {

// probabilities = softmax of each row of logits[rows, experts]; choices[rows, top_k]: the largest of a row, descending,
// of equal ones the lower number first; gates[rows, top_k]: their probabilities, divided by their sum if there are
// several (2006.16668, section 2.2). probabilities and gates wide.
void route(cudaStream_t stream, View probabilities, View gates, int32_t* choices, View logits, int64_t rows,
           int64_t experts, int64_t top_k);
// Row r is of sequence (first_row + r) / length, whose tokens chose expert e loads[sequence * experts + e] times;
// balance * that is added to the gradient of probability e.
void route_backward(cudaStream_t stream, View logits_grad, View gates_grad, View probabilities, View gates,
                    const int32_t* choices, const int32_t* loads, double balance, int64_t rows, int64_t experts,
                    int64_t top_k, int64_t first_row, int64_t length);
void pick_rows(cudaStream_t stream, View out, View in, const int32_t* rows, int64_t count, int64_t width);
// out[row] (+)= sum over j of gates[row, j] * values[slots[row, j]]; slot -1: left out. No gates: all 1.
void combine(cudaStream_t stream, Into out, View values, View gates, const int32_t* slots, int64_t rows, int64_t top_k,
             int64_t width);
void combine_backward(cudaStream_t stream, View values_grad, View gates_grad, View out_grad, View values, View gates,
                      const int32_t* slots, int64_t rows, int64_t top_k, int64_t width);

}  // namespace train
