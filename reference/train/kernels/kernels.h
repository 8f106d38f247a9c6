// SPDX-License-Identifier: MIT
//
// Everything the trainer computes, as free functions on (stream, views, sizes): the interface that the CPU (this
// folder) and CUDA implement. They enqueue on the stream and return; they allocate no device memory and synchronise
// nothing.
//
// Matrices are row-major and dense. `rows` are tokens. T is the views' type; statistics, gradients of parameters and
// losses are wide(T) (fp32 for bf16). Sums run in an order that depends on the sizes alone, so that the bits do not
// depend on the number of threads. Sizes of 0 are legal and do nothing. Views may not overlap unless said otherwise.

#pragma once

#include <cuda_runtime.h>

#include "reference/train/core/tensor.h"

namespace train {

// --- the CPU's threads -----------------------------------------------------------------------------------------------
// Threads that share one kernel's fixed blocks, for the process (all its ranks); 1 by default. Set before the first
// kernel.
void set_threads(int threads);

// --- random numbers --------------------------------------------------------------------------------------------------
// Philox4x32-10 (Salmon et al., SC11, section 3), a function of what a number is for and never of where it is computed:
// key = seed; counter = (feature / 4, position, sample low 32 bits, purpose 8 bits | layer 12 bits | sample high 12
// bits); word feature % 4 of the block. Uniform in [0, 1): top 24 bits; normals: Box-Muller of words (0, 1) and (2, 3),
// in double.
enum class RandomUse : uint32_t {
  init,
  embedding_dropout,
  attention_dropout,
  attention_output_dropout,
  mlp_dropout,
  shuffle,
  test,
  label_mask
};
struct RandomStream {
  uint64_t seed = 0;
  RandomUse use = RandomUse::init;
  uint32_t layer = 0;
};
// Normal numbers of a parameter's part: element i of the whole tensor is number i of the stream (sample = index of the
// parameter among all of the model, position = row, feature = column). `row` and `column`: where the part begins.
void fill_normal(cudaStream_t stream, View out, RandomStream random, int64_t parameter, double std, int64_t rows,
                 int64_t columns, int64_t row, int64_t column);

// --- elementwise -----------------------------------------------------------------------------------------------------
void fill(cudaStream_t stream, View out, double value);
void convert(cudaStream_t stream, View out, View in);                  // between types, round to nearest even
void add(cudaStream_t stream, View out, View a, View b);               // out = a + b; out may be a or b
void add_to(cudaStream_t stream, View sum, View term, double factor);  // sum += factor * term; types may differ
void scale(cudaStream_t stream, View inout, double factor);
void divide(cudaStream_t stream, View inout, double divisor);  // one rounding an element
void gelu_forward(cudaStream_t stream, View out, View in);     // tanh form (Hendrycks & Gimpel 1606.08415, section 2)
void gelu_backward(cudaStream_t stream, View in_grad, View out_grad, View in);
// out = in * (u >= p) / (1 - p), u from (random, sample, order position, feature). Elements are [rows, columns], the
// columns being features first_column... of the whole. Its own backward pass. out may be in. p = 0 copies.
void dropout(cudaStream_t stream, View out, View in, RandomStream random, double p, const int64_t* samples,
             const int32_t* order, int64_t rows, int64_t columns, int64_t first_column);

// --- dense layers ----------------------------------------------------------------------------------------------------
// y[rows, outputs] = x[rows, inputs] w[outputs, inputs]^T + b[outputs]; b may be empty.
void linear_forward(cudaStream_t stream, View y, View x, View w, View b, int64_t rows, int64_t inputs, int64_t outputs);
void linear_backward_input(cudaStream_t stream, Into x_grad, View y_grad, View w, int64_t rows, int64_t inputs,
                           int64_t outputs);
void linear_backward_weight(cudaStream_t stream, Into w_grad, View y_grad, View x, int64_t rows, int64_t inputs,
                            int64_t outputs);
// y += b in every row: the bias of a row-parallel layer, after the sum over ranks.
void add_bias(cudaStream_t stream, View y, View b, int64_t rows, int64_t outputs);
void bias_backward(cudaStream_t stream, Into b_grad, View y_grad, int64_t rows, int64_t outputs);

// Layer norm over each row of x[rows, width] (Ba et al. 1607.06450), eps 1e-5; statistics [rows].
void layernorm_forward(cudaStream_t stream, View y, View mean, View rstd, View x, View gain, View bias, int64_t rows,
                       int64_t width);
void layernorm_backward_input(cudaStream_t stream, Into x_grad, View y_grad, View x, View gain, View mean, View rstd,
                              int64_t rows, int64_t width);
// Either gradient may be empty (a frozen parameter).
void layernorm_backward_weight(cudaStream_t stream, Into gain_grad, Into bias_grad, View y_grad, View x, View mean,
                               View rstd, int64_t rows, int64_t width);

// --- embeddings ------------------------------------------------------------------------------------------------------
// y[row] (+)= table[tokens[row] - first] where first <= tokens[row] < first + count, else 0 (or nothing is added).
void embedding_forward(cudaStream_t stream, Into y, View table, const int32_t* indices, int64_t first, int64_t count,
                       int64_t rows, int64_t width);
// The gradient of the rows, each the sum over the tokens in their order.
void embedding_backward(cudaStream_t stream, Into table_grad, View y_grad, const int32_t* indices, int64_t first,
                        int64_t count, int64_t rows, int64_t width);
// Rotary positions (Su et al. 2104.09864, section 3.4.2; halves (i, i + d/2) as in GPT-NeoX), base 10000, in place on
// x[rows, stride], whose first heads * head_width columns are turned; `inverse` is the backward pass.
void rotary(cudaStream_t stream, View x, const int32_t* positions, int64_t rows, int64_t stride, int64_t heads,
            int64_t head_width, bool inverse);

// --- attention -------------------------------------------------------------------------------------------------------
// Causal softmax attention by tiles with an online softmax (Dao et al. 2205.14135, algorithm 1), so that partial
// results over blocks of keys can be merged (ring attention). Query i sees key j where order[j] <= order[i] and
// documents are equal.
struct AttentionShape {
  int64_t sequences, queries, keys;         // per sequence
  int64_t heads, kv_heads, head_width;      // heads % kv_heads == 0: head h reads kv head h / (heads / kv_heads)
  int64_t q_stride, kv_stride, out_stride;  // elements from one row to the next of q, of k and v, of out
  int64_t first_head = 0;                   // of this rank among all: random numbers
};
struct AttentionRows {  // [sequences * queries] and [sequences * keys]
  const int32_t *q_order, *q_documents, *k_order, *k_documents;
  const int64_t* samples;  // [sequences * queries]
};
// out and lse [sequences * queries, heads] (wide: log of the sum of exp of the scaled scores; -inf: saw no key). With
// `merge` the result is combined with what out and lse hold from other keys; out may be wide for that. Dropout acts on
// the probabilities: position = query's order, feature = head * 2^20 + key's order.
void attention_forward(cudaStream_t stream, View out, View lse, View q, View k, View v, const AttentionShape& shape,
                       const AttentionRows& rows, RandomStream random, double dropout, bool merge);
// delta[row, head] = sum of out_grad * out: needs the final out. Then the gradients for one block of keys, given the
// final lse.
void attention_delta(cudaStream_t stream, View delta, View out_grad, View out, const AttentionShape& shape);
void attention_backward(cudaStream_t stream, Into q_grad, Into k_grad, Into v_grad, View out_grad, View q, View k,
                        View v, View lse, View delta, const AttentionShape& shape, const AttentionRows& rows,
                        RandomStream random, double dropout);

// --- loss ------------------------------------------------------------------------------------------------------------
// Softmax cross entropy in pieces, so that a vocabulary split over ranks puts its three all-reduces between them
// (1909.08053, section 3). logits[rows, columns] are the classes first... of the whole; those at or beyond `classes`
// are padding and count as -inf. All statistics wide [rows].
void loss_row_max(cudaStream_t stream, View row_max, View logits, int64_t rows, int64_t columns, int64_t first,
                  int64_t classes);
// target_logit: logit - row_max of the target where it is among this rank's classes, else 0; sum_exp: of exp(logit -
// row_max).
void loss_row_sums(cudaStream_t stream, View target_logit, View sum_exp, View logits, View row_max,
                   const int32_t* targets, int64_t rows, int64_t columns, int64_t first, int64_t classes);
// *loss (double, one element, added to) += sum over rows with a target of log(sum_exp) - target_logit, in row order.
void loss_sum(cudaStream_t stream, View loss, View target_logit, View sum_exp, const int32_t* targets, int64_t rows);
// logits become their gradient: scale * (softmax - one_hot), 0 in rows without a target and in padding.
void loss_backward(cudaStream_t stream, View logits, View row_max, View sum_exp, const int32_t* targets, int64_t rows,
                   int64_t columns, int64_t first, int64_t classes, double scale);

// --- compression -----------------------------------------------------------------------------------------------------
// Moves the `values.size` elements of `rest` that are largest in size to values and indices, in ascending order of
// their places, and leaves zeros there. Of equal ones the first are taken. `order` is workspace, [rest.size]. Wide
// types.
void take_largest(cudaStream_t stream, View values, int32_t* indices, View rest, int32_t* order);
// sum[indices[i]] += values[i], one after another.
void add_at(cudaStream_t stream, View sum, View values, const int32_t* indices);

// --- optimizers ------------------------------------------------------------------------------------------------------
// Sum of squares as a double-double {high, low} (two doubles, added to): its rounding does not show in the rounded
// result, so that it does not depend on how the elements are spread over ranks.
void add_squares(cudaStream_t stream, View high_low, View values);
struct AdamW {  // Loshchilov & Hutter 1711.05101, algorithm 2; step counts from 1
  double rate, beta1, beta2, eps, decay;
  int64_t step;
};
// grad is multiplied by grad_factor (clipping) first. value is rounded from master where they differ.
void adamw(cudaStream_t stream, View value, View master, View first, View second, View grad, double grad_factor,
           AdamW settings);
struct Sgd {  // first = momentum * first + grad + decay * master; master -= rate * first (as PyTorch's SGD)
  double rate, momentum, decay;
};
void sgd(cudaStream_t stream, View value, View master, View first, View grad, double grad_factor, Sgd settings);

}  // namespace train
