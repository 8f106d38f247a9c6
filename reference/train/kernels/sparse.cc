// SPDX-License-Identifier: MIT
//
// The largest elements of a vector, for compressed gradients.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"

namespace train {

void take_largest(cudaStream_t stream, View values, int32_t* indices, View rest, int32_t* order) {
  expect(values.dtype == rest.dtype && values.size <= rest.size, "take_largest", "no more values than there are");
  launch(stream, [=] {
    with_wide_type(rest.dtype, [&](auto type) {
      using T = decltype(type);
      T *from = data_of<T>(rest), *to = data_of<T>(values);
      std::iota(order, order + rest.size, 0);
      const auto larger = [from](int32_t a, int32_t b) {
        const T x = std::abs(from[a]), y = std::abs(from[b]);
        return x != y ? x > y : a < b;
      };
      std::nth_element(order, order + values.size, order + rest.size, larger);
      std::sort(order, order + values.size);
      for (int64_t i = 0; i < values.size; ++i) {
        indices[i] = order[i];
        to[i] = from[order[i]];
        from[order[i]] = 0;
      }
    });
  });
}

void add_at(cudaStream_t stream, View sum, View values, const int32_t* indices) {
  expect(sum.dtype == values.dtype, "add_at", "one type");
  launch(stream, [=] {
    with_wide_type(sum.dtype, [&](auto type) {
      using T = decltype(type);
      for (int64_t i = 0; i < values.size; ++i) data_of<T>(sum)[indices[i]] += data_of<T>(values)[i];
    });
  });
}

}  // namespace train
