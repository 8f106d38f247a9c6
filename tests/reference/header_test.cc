// SPDX-License-Identifier: MIT
//
// Our <cuda_runtime_api.h> against the toolkit's, and the texts of errors against the real library's.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "cuda_runtime_api.h"
#include "tests/reference/header_facts.inc"

#if LOCKSTEP_HAVE_REAL_HEADERS
std::map<std::string, long> real_values();
std::map<std::string, std::string> real_types();
#else
static std::map<std::string, long> real_values() { return {}; }
static std::map<std::string, std::string> real_types() { return {}; }
#endif

namespace {

constexpr char kNoToolkit[] = "no CUDA 13 toolkit on this machine to compare with";

TEST(CudaHeader, HasTheToolkitsValuesAndLayouts) {
  if (!LOCKSTEP_HAVE_REAL_HEADERS) GTEST_SKIP() << kNoToolkit;
  EXPECT_GT(collect_values().size(), 150u);
  EXPECT_EQ(real_values(), collect_values());
}

TEST(CudaHeader, HasTheToolkitsPrototypes) {
  if (!LOCKSTEP_HAVE_REAL_HEADERS) GTEST_SKIP() << kNoToolkit;
  EXPECT_EQ(real_types(), collect_types());
}

TEST(CudaErrors, ReadAsTheRealLibrarySaysThem) {
  const std::string path = LOCKSTEP_REAL_CUDART;
  if (path.empty()) GTEST_SKIP() << kNoToolkit;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) GTEST_SKIP() << dlerror();
  using Text = const char* (*)(cudaError_t);
  const auto real_name = reinterpret_cast<Text>(dlsym(library, "cudaGetErrorName"));
  const auto real_string = reinterpret_cast<Text>(dlsym(library, "cudaGetErrorString"));
  ASSERT_NE(nullptr, real_name);
  ASSERT_NE(nullptr, real_string);
  ASSERT_NE(real_name, &cudaGetErrorName);
  for (int number = 0; number < 1100; ++number) {
    const auto error = static_cast<cudaError_t>(number);
    EXPECT_STREQ(real_name(error), cudaGetErrorName(error)) << number;
    EXPECT_STREQ(real_string(error), cudaGetErrorString(error)) << number;
  }
}

}  // namespace
