// SPDX-License-Identifier: MIT
//
// What the kernels' tests stand on: values to the device and back as doubles, every kernel run with several numbers of
// threads and several instruction sets, whose results must be the same bits, and the bound that a result in some type
// must keep to what plain loops in double give.

#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "reference/train/core/device.h"
#include "reference/train/kernels/kernels.h"

namespace train::test {

using Values = std::vector<double>;

class KernelTest : public testing::TestWithParam<Dtype> {
 protected:
  Dtype type() const { return GetParam(); }
  cudaStream_t stream() const { return stream_.get(); }

  View put(const Values& values, Dtype dtype);
  View put(const Values& values) { return put(values, type()); }
  View room(int64_t count, Dtype dtype);  // of NaN: what a kernel does not write is seen
  View room(int64_t count) { return room(count, type()); }
  template <class T>
  const T* put_indices(const std::vector<T>& values) {
    auto* to = static_cast<T*>(memory_.allocate_bytes(Purpose::workspace, values.size() * sizeof(T) + 1));
    copy(to, values.data(), values.size() * sizeof(T));
    return to;
  }
  Values get(const View& view);

  // Normal numbers as the type under test can hold them.
  Values normal(int64_t count, double spread = 1);
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }

  // Runs `kernel`, which returns the views it wrote, with 1, 2, 3 and 8 threads and with each instruction set; all must
  // give the same bits.
  std::vector<Values> run(const std::function<std::vector<View>()>& kernel);
  Values run_one(const std::function<View()>& kernel) {
    return run([&] { return std::vector<View>{kernel()}; })[0];
  }

 private:
  void copy(void* to, const void* from, size_t bytes);

  Memory memory_{0};
  Stream stream_;
  std::mt19937_64 random_{12345};
};

// |got - wanted| <= factor * (unit roundoff of dtype) * (the largest wanted value, at least `floor`) for every element.
// The factor stands for the roundings on the way to one element.
void expect_close(const Values& got, const Values& wanted, Dtype dtype, double factor, double floor = 1e-30);

inline double roundoff(Dtype dtype) { return dtype == Dtype::f64 ? 0x1p-53 : dtype == Dtype::f32 ? 0x1p-24 : 0x1p-8; }
// What bf16 kernels compute in has fp32's roundoff; this is the roundoff of a result stored in `dtype`.
std::string name_of_type(const testing::TestParamInfo<Dtype>& info);

// How loss() changes with `at`: a central difference over 2 h.
template <class Loss>
double slope(double& at, double h, const Loss& loss) {
  const double kept = at;
  at = kept + h;
  const double up = loss();
  at = kept - h;
  const double down = loss();
  at = kept;
  return (up - down) / (2 * h);
}

#define LOCKSTEP_ALL_TYPES(suite) \
  INSTANTIATE_TEST_SUITE_P(Types, suite, testing::Values(Dtype::f64, Dtype::f32, Dtype::bf16), name_of_type)

}  // namespace train::test
