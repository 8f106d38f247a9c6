// SPDX-License-Identifier: MIT
//
// What is computed for experts besides their layers: which token goes where, and the sums on the way back.

#include "reference/train/kernels/experts.h"

#include <algorithm>
#include <cmath>

#include "reference/train/kernels/launch.h"
#include "reference/train/kernels/threads.h"

namespace train {
namespace {

constexpr int64_t kRows = 16;

template <class Body>
void for_rows(int64_t rows, const Body& body) {
  for_pieces(rows, kRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace

void route(cudaStream_t stream, View probabilities, View gates, int32_t* choices, View logits, int64_t rows,
           int64_t experts, int64_t top_k) {
  expect(probabilities.dtype == wide(logits.dtype) && gates.dtype == probabilities.dtype, "route", "wide results");
  launch(stream, [=] {
    with_type(logits.dtype, [&](auto type) {
      using T = decltype(type);
      using W = Wide<T>;
      for_rows(rows, [&](int64_t row) {
        const T* from = data_of<T>(logits) + row * experts;
        W* p = data_of<W>(probabilities) + row * experts;
        W largest = load(from[0]), sum = 0;
        for (int64_t e = 1; e < experts; ++e) largest = std::max<W>(largest, load(from[e]));
        for (int64_t e = 0; e < experts; ++e) sum += p[e] = std::exp(load(from[e]) - largest);
        for (int64_t e = 0; e < experts; ++e) p[e] /= sum;
        W chosen = 0;
        int32_t* choice = choices + row * top_k;
        for (int64_t j = 0; j < top_k; ++j) {
          int32_t best = -1;
          for (int32_t e = 0; e < experts; ++e)
            if (std::find(choice, choice + j, e) == choice + j && (best < 0 || p[e] > p[best])) best = e;
          choice[j] = best;
          chosen += p[best];
        }
        for (int64_t j = 0; j < top_k; ++j)
          data_of<W>(gates)[row * top_k + j] = top_k > 1 ? p[choice[j]] / chosen : p[choice[j]];
      });
    });
  });
}

void route_backward(cudaStream_t stream, View logits_grad, View gates_grad, View probabilities, View gates,
                    const int32_t* choices, const int32_t* loads, double balance, int64_t rows, int64_t experts,
                    int64_t top_k, int64_t first_row, int64_t length) {
  launch(stream, [=] {
    with_type(logits_grad.dtype, [&](auto type) {
      using T = decltype(type);
      using W = Wide<T>;
      for_rows(rows, [&](int64_t row) {
        const W* p = data_of<W>(probabilities) + row * experts;
        const W *g = data_of<W>(gates) + row * top_k, *g_grad = data_of<W>(gates_grad) + row * top_k;
        const int32_t *choice = choices + row * top_k, *load_of = loads + (first_row + row) / length * experts;
        W chosen = 0, mean = 0, dot = 0;
        for (int64_t j = 0; j < top_k; ++j) {
          chosen += p[choice[j]];
          mean += g[j] * g_grad[j];
        }
        const auto p_grad = [&](int64_t e) {
          W grad = static_cast<W>(balance) * static_cast<W>(load_of[e]);
          for (int64_t j = 0; j < top_k; ++j)
            if (choice[j] == e) grad += top_k > 1 ? (g_grad[j] - mean) / chosen : g_grad[j];
          return grad;
        };
        for (int64_t e = 0; e < experts; ++e) dot += p[e] * p_grad(e);
        for (int64_t e = 0; e < experts; ++e)
          data_of<T>(logits_grad)[row * experts + e] = store<T>(p[e] * (p_grad(e) - dot));
      });
    });
  });
}

void pick_rows(cudaStream_t stream, View out, View in, const int32_t* rows, int64_t count, int64_t width) {
  launch(stream, [=] {
    with_type(in.dtype, [&](auto type) {
      using T = decltype(type);
      for_rows(count, [&](int64_t i) {
        const T* from = data_of<T>(in) + rows[i] * width;
        std::copy(from, from + width, data_of<T>(out) + i * width);
      });
    });
  });
}

void combine(cudaStream_t stream, Into out, View values, View gates, const int32_t* slots, int64_t rows, int64_t top_k,
             int64_t width) {
  launch(stream, [=] {
    with_type(out.view.dtype, [&](auto type) {
      using T = decltype(type);
      using W = Wide<T>;
      for_rows(rows, [&](int64_t row) {
        T* to = data_of<T>(out.view) + row * width;
        for (int64_t c = 0; c < width; ++c) {
          W sum = out.add ? load(to[c]) : W{0};
          for (int64_t j = 0; j < top_k; ++j) {
            const int32_t slot = slots[row * top_k + j];
            if (slot < 0) continue;
            const W gate = gates ? data_of<W>(gates)[row * top_k + j] : W{1};
            sum += gate * load(data_of<T>(values)[slot * width + c]);
          }
          to[c] = store<T>(sum);
        }
      });
    });
  });
}

void combine_backward(cudaStream_t stream, View values_grad, View gates_grad, View out_grad, View values, View gates,
                      const int32_t* slots, int64_t rows, int64_t top_k, int64_t width) {
  launch(stream, [=] {
    with_type(out_grad.dtype, [&](auto type) {
      using T = decltype(type);
      using W = Wide<T>;
      for_rows(rows, [&](int64_t row) {
        const T* grad = data_of<T>(out_grad) + row * width;
        for (int64_t j = 0; j < top_k; ++j) {
          const int64_t at = row * top_k + j;
          const int32_t slot = slots[at];
          W sum = 0;
          for (int64_t c = 0; c < width && slot >= 0; ++c) {
            sum += load(grad[c]) * load(data_of<T>(values)[slot * width + c]);
            data_of<T>(values_grad)[slot * width + c] = store<T>(data_of<W>(gates)[at] * load(grad[c]));
          }
          data_of<W>(gates_grad)[at] = sum;
        }
      });
    });
  });
}

}  // namespace train
