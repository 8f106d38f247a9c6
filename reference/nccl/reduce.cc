// SPDX-License-Identifier: MIT
//
// See reduce.h. Each combination of type and operator is a set of three plain loops, which compilers turn into vector
// code; they run over blocks that stay in the first-level cache, so that each input is read from memory once.

#include "reference/nccl/reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "interpose/abi/functions.h"
#include "reference/nccl/half.h"

namespace lockstep::nccl {
namespace {

constexpr size_t kBlockBytes = 8192;

template <class T>
constexpr bool kInteger = std::is_integral_v<T>;

// Arithmetic happens in this type: unsigned for integers (wrap-around), float for the half types.
template <class T>
auto widen(T x) {
  if constexpr (kInteger<T> && sizeof(T) < 4)
    return static_cast<uint32_t>(x);
  else if constexpr (kInteger<T>)
    return static_cast<std::make_unsigned_t<T>>(x);
  else if constexpr (std::is_floating_point_v<T>)
    return x;
  else
    return x.to_float();
}
template <class T, class W>
T narrow(W x) {
  if constexpr (kInteger<T> || std::is_floating_point_v<T>)
    return static_cast<T>(x);
  else
    return T::from_float(x);
}

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return narrow<T>(widen(a) + widen(b));
  }
};
struct Prod {
  template <class T>
  static T apply(T a, T b) {
    return narrow<T>(widen(a) * widen(b));
  }
};
template <class T>
bool less(T a, T b) {
  if constexpr (kInteger<T>)
    return a < b;
  else
    return widen(a) < widen(b);
}
template <class T>
bool is_nan(T a) {
  if constexpr (kInteger<T>)
    return false;
  else
    return widen(a) != widen(a);
}
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return is_nan(b) ? a : (less(b, a) ? a : b);
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return is_nan(b) ? a : (less(a, b) ? a : b);
  }
};

template <class T>
T reciprocal(int n) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(1.0 / n);
  else
    return T::from_float(static_cast<float>(1.0 / n));
}

// Sum of inputs that are scaled first. (Integers are divided at the end instead.)
template <class T>
T scaled(T x, T scale) {
  if constexpr (kInteger<T>)
    return x;
  else
    return narrow<T>(widen(x) * widen(scale));
}

template <class T, class Op, bool kScale>
struct Kernel {
  T scale{};
  T in(T x) const {
    if constexpr (kScale)
      return scaled(x, scale);
    else
      return x;
  }
  void one(T* dst, const T* a, size_t n) const {
    for (size_t i = 0; i < n; ++i) dst[i] = in(a[i]);
  }
  void two(T* dst, const T* a, const T* b, size_t n) const {
    for (size_t i = 0; i < n; ++i) dst[i] = Op::apply(in(a[i]), in(b[i]));
  }
  void next(T* dst, const T* so_far, const T* b, size_t n) const {
    for (size_t i = 0; i < n; ++i) dst[i] = Op::apply(so_far[i], in(b[i]));
  }
};

template <class T, class Op, bool kScale>
void run(const Kernel<T, Op, kScale>& kernel, std::byte* dst_bytes, const std::vector<const std::byte*>& inputs,
         size_t count) {
  constexpr size_t block = kBlockBytes / sizeof(T);
  alignas(64) T so_far[block];
  auto* dst = reinterpret_cast<T*>(dst_bytes);
  const auto input = [&](size_t r) { return reinterpret_cast<const T*>(inputs[r]); };
  for (size_t at = 0; at < count; at += block) {
    const size_t n = std::min(block, count - at);
    if (inputs.size() == 1) {
      kernel.one(dst + at, input(0) + at, n);
      continue;
    }
    // dst may be one of the inputs, so nothing is written to it before the last input is read.
    T* const first_to = inputs.size() == 2 ? dst + at : so_far;
    kernel.two(first_to, input(0) + at, input(1) + at, n);
    for (size_t r = 2; r < inputs.size(); ++r)
      kernel.next(r + 1 == inputs.size() ? dst + at : so_far, so_far, input(r) + at, n);
  }
}

template <class T>
void divide(std::byte* dst_bytes, size_t count, int n) {
  auto* dst = reinterpret_cast<T*>(dst_bytes);
  if constexpr (std::is_signed_v<T>)
    for (size_t i = 0; i < count; ++i) dst[i] = static_cast<T>(dst[i] / static_cast<std::common_type_t<T, int>>(n));
  else
    for (size_t i = 0; i < count; ++i)
      dst[i] = static_cast<T>(dst[i] / static_cast<std::common_type_t<T, unsigned>>(n));
}

template <class T>
void reduce_as(const Reduction& how, std::byte* dst, const std::vector<const std::byte*>& inputs, size_t count) {
  switch (how.op) {
    case ncclSum:
      return run(Kernel<T, Sum, false>{}, dst, inputs, count);
    case ncclProd:
      return run(Kernel<T, Prod, false>{}, dst, inputs, count);
    case ncclMax:
      return run(Kernel<T, Max, false>{}, dst, inputs, count);
    case ncclMin:
      return run(Kernel<T, Min, false>{}, dst, inputs, count);
    default:
      break;
  }
  if constexpr (kInteger<T>) {
    run(Kernel<T, Sum, false>{}, dst, inputs, count);
    divide<T>(dst, count, how.nranks);
  } else {
    run(Kernel<T, Sum, true>{reciprocal<T>(how.nranks)}, dst, inputs, count);
  }
}

}  // namespace

bool can_reduce(ncclDataType_t dtype) { return dtype >= ncclInt8 && dtype <= ncclBfloat16; }

void reduce(const Reduction& how, std::byte* dst, const std::vector<const std::byte*>& inputs, size_t count) {
  switch (how.dtype) {
    case ncclInt8:
      return reduce_as<int8_t>(how, dst, inputs, count);
    case ncclUint8:
      return reduce_as<uint8_t>(how, dst, inputs, count);
    case ncclInt32:
      return reduce_as<int32_t>(how, dst, inputs, count);
    case ncclUint32:
      return reduce_as<uint32_t>(how, dst, inputs, count);
    case ncclInt64:
      return reduce_as<int64_t>(how, dst, inputs, count);
    case ncclUint64:
      return reduce_as<uint64_t>(how, dst, inputs, count);
    case ncclFloat16:
      return reduce_as<Half>(how, dst, inputs, count);
    case ncclBfloat16:
      return reduce_as<Bfloat16>(how, dst, inputs, count);
    case ncclFloat32:
      return reduce_as<float>(how, dst, inputs, count);
    case ncclFloat64:
      return reduce_as<double>(how, dst, inputs, count);
    default:
      return;
  }
}

}  // namespace lockstep::nccl
