// SPDX-License-Identifier: MIT
//
// The one door to BLAS: c (+)= a b of row-major matrices, on this thread alone.

#pragma once

#include <cblas.h>

#include <cstdint>

namespace train {

// Before the first product: OpenBLAS shall start no threads of its own (and with several it does not bear many
// callers).
void prepare_blas();

inline void gemm(bool turn_a, bool turn_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                 int64_t ldb, bool add, float* c, int64_t ldc) {
  cblas_sgemm(CblasRowMajor, turn_a ? CblasTrans : CblasNoTrans, turn_b ? CblasTrans : CblasNoTrans,
              static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1, a,
              static_cast<blasint>(lda), b, static_cast<blasint>(ldb), add ? 1 : 0, c, static_cast<blasint>(ldc));
}
inline void gemm(bool turn_a, bool turn_b, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda,
                 const double* b, int64_t ldb, bool add, double* c, int64_t ldc) {
  cblas_dgemm(CblasRowMajor, turn_a ? CblasTrans : CblasNoTrans, turn_b ? CblasTrans : CblasNoTrans,
              static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1, a,
              static_cast<blasint>(lda), b, static_cast<blasint>(ldb), add ? 1 : 0, c, static_cast<blasint>(ldc));
}

}  // namespace train
