// SPDX-License-Identifier: MIT

#include "tests/train/kernels/harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/train/kernels/numbers.h"
#include "reference/train/kernels/vector.h"

namespace train::test {

void KernelTest::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "cudaMemcpyAsync");
  stream_.synchronize();
}

namespace {

template <class T>
std::vector<char> bytes_of(const Values& values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T stored = store<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &stored, sizeof(T));
  }
  return bytes;
}
template <class T>
Values values_of(const std::vector<char>& bytes) {
  Values values(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(load(stored));
  }
  return values;
}

}  // namespace

View KernelTest::put(const Values& values, Dtype dtype) {
  const View view = memory_.allocate(Purpose::workspace, dtype, static_cast<int64_t>(values.size()));
  const std::vector<char> bytes = dtype == Dtype::f64   ? bytes_of<double>(values)
                                  : dtype == Dtype::f32 ? bytes_of<float>(values)
                                                        : bytes_of<Bf16>(values);
  copy(view.data, bytes.data(), bytes.size());
  return view;
}

View KernelTest::room(int64_t count, Dtype dtype) {
  return put(Values(static_cast<size_t>(count), std::numeric_limits<double>::quiet_NaN()), dtype);
}

Values KernelTest::get(const View& view) {
  std::vector<char> bytes(view.bytes());
  copy(bytes.data(), view.data, bytes.size());
  return view.dtype == Dtype::f64   ? values_of<double>(bytes)
         : view.dtype == Dtype::f32 ? values_of<float>(bytes)
                                    : values_of<Bf16>(bytes);
}

Values KernelTest::normal(int64_t count, double spread) {
  std::normal_distribution<double> normal(0, spread);
  Values values(static_cast<size_t>(count));
  for (double& value : values) {
    value = normal(random_);
    if (type() == Dtype::f32) value = static_cast<float>(value);
    if (type() == Dtype::bf16) value = static_cast<double>(load(to_bf16(value)));
  }
  return values;
}

std::vector<Values> KernelTest::run(const std::function<std::vector<View>()>& kernel) {
  const auto results_of = [&](Isa set, int threads) {
    set_isa(set);
    set_threads(threads);
    const std::vector<View> views = kernel();
    stream_.synchronize();
    std::vector<Values> results;
    for (const View& view : views) results.push_back(get(view));
    return results;
  };
  struct Way {
    Isa set;
    int threads;
    const char* name;
  };
  const std::vector<Values> first = results_of(best_isa(), 1);
  for (const auto& [set, threads, name] :
       {Way{best_isa(), 2, "two threads"}, Way{best_isa(), 3, "three threads"}, Way{best_isa(), 8, "eight threads"},
        Way{Isa::avx2, 1, "no AVX-512"}, Way{Isa::plain, 1, "no vector extension"}}) {
    const std::vector<Values> results = results_of(set, threads);
    for (size_t i = 0; i < results.size(); ++i) {
      const bool same = first[i].empty() ||  // no bytes: memcmp may not be given null
                        std::memcmp(first[i].data(), results[i].data(), first[i].size() * sizeof(double)) == 0;
      EXPECT_TRUE(same) << "result " << i << " has other bits with " << name;
    }
  }
  set_isa(best_isa());
  set_threads(1);
  return first;
}

void expect_close(const Values& got, const Values& wanted, Dtype dtype, double factor, double floor) {
  ASSERT_EQ(got.size(), wanted.size());
  double largest = floor;
  for (const double value : wanted)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  const double bound = factor * roundoff(dtype) * largest;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == wanted[i]) continue;  // infinities too
    ASSERT_LE(std::abs(got[i] - wanted[i]), bound) << "element " << i << ": " << got[i] << " instead of " << wanted[i];
    ASSERT_FALSE(std::isnan(got[i])) << "element " << i << " is not a number";
  }
}

std::string name_of_type(const testing::TestParamInfo<Dtype>& info) {
  return info.param == Dtype::f64 ? "f64" : info.param == Dtype::f32 ? "f32" : "bf16";
}

}  // namespace train::test
