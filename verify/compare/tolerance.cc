// SPDX-License-Identifier: MIT

#include "verify/compare/tolerance.h"

namespace lockstep::verify {

Tolerance tolerance_of(dump::Dtype dtype) {
  switch (dtype) {
    case dump::Dtype::f64:
      return {1e-12,
              "another order of summation moves a tensor by 1e-16 to 1e-13, a mistake in the logic by 1e-6 and more"};
    case dump::Dtype::f32:
      return {1e-5,
              "another order of summation moves a tensor by 1e-7 to 5e-6 (each rounding is 6e-8), most mistakes "
              "by 1e-3 and more"};
    case dump::Dtype::f16:
      return {2e-3,
              "each rounding is 5e-4; smaller mistakes than four of them cannot be told from noise, so compare in "
              "F32 as well"};
    case dump::Dtype::bf16:
      return {
          5e-2,
          "each rounding is 4e-3, and a gradient is a sum of terms that cancel: another layout moves a tensor by up "
          "to 2e-2, a bias that began at zero by 4e-2; smaller mistakes cannot be told from noise, so compare in F32 "
          "as well"};
    default:
      return {0, "whole numbers are equal or they are not"};
  }
}

dump::Dtype coarser(dump::Dtype a, dump::Dtype b) { return tolerance_of(a).rtol >= tolerance_of(b).rtol ? a : b; }

}  // namespace lockstep::verify
