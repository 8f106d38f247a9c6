// SPDX-License-Identifier: MIT
//
// See reduce.h. Each combination of type and operator is a set of three plain loops, which compilers turn into vector
// code; they run over blocks that stay in the first-level cache, so that each input is read from memory once.
// (The 8-bit types are not vectorised; nobody trains on CPUs with them.)

#include "reference/nccl/reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "interpose/abi/functions.h"
#include "reference/nccl/float8.h"
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
  if constexpr (kInteger<T>)
    return static_cast<T>(n == 1 ? 1 : 0);
  else if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(1.0 / n);
  else if constexpr (sizeof(T) == 1)
    return T::nearest(static_cast<float>(1.0 / n));
  else
    return T::from_float(static_cast<float>(1.0 / n));
}

template <class T>
T scale_of(const Input& input) {
  T scale;
  std::memcpy(&scale, &input.scale, sizeof scale);
  return scale;
}

template <class T, class Op, bool kScale>
struct Kernel {
  static T in(T x, T scale) {
    if constexpr (kScale)
      return narrow<T>(widen(x) * widen(scale));
    else
      return x;
  }
  static void one(T* dst, const T* a, T scale_a, size_t n) {
    for (size_t i = 0; i < n; ++i) dst[i] = in(a[i], scale_a);
  }
  static void two(T* dst, const T* a, T scale_a, const T* b, T scale_b, size_t n) {
    for (size_t i = 0; i < n; ++i) dst[i] = Op::apply(in(a[i], scale_a), in(b[i], scale_b));
  }
  static void next(T* dst, const T* so_far, const T* b, T scale_b, size_t n) {
    for (size_t i = 0; i < n; ++i) dst[i] = Op::apply(so_far[i], in(b[i], scale_b));
  }
};

template <class T, class Op, bool kScale>
void fold(std::byte* dst_bytes, const std::vector<Input>& inputs, size_t count) {
  using K = Kernel<T, Op, kScale>;
  constexpr size_t block = kBlockBytes / sizeof(T);
  alignas(64) T so_far[block];
  auto* dst = reinterpret_cast<T*>(dst_bytes);
  const auto input = [&](size_t r) { return reinterpret_cast<const T*>(inputs[r].data); };
  const auto scale = [&](size_t r) { return scale_of<T>(inputs[r]); };
  for (size_t at = 0; at < count; at += block) {
    const size_t n = std::min(block, count - at);
    if (inputs.size() == 1) {
      K::one(dst + at, input(0) + at, scale(0), n);
      continue;
    }
    // dst may be one of the inputs, so nothing is written to it before the last input is read.
    T* const first_to = inputs.size() == 2 ? dst + at : so_far;
    K::two(first_to, input(0) + at, scale(0), input(1) + at, scale(1), n);
    for (size_t r = 2; r < inputs.size(); ++r)
      K::next(r + 1 == inputs.size() ? dst + at : so_far, so_far, input(r) + at, scale(r), n);
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

// Calls work<T>() for the C++ type of a dtype.
template <class Work>
auto with_type(ncclDataType_t dtype, const Work& work) {
  switch (dtype) {
    case ncclInt8:
      return work(int8_t{});
    case ncclUint8:
      return work(uint8_t{});
    case ncclInt32:
      return work(int32_t{});
    case ncclUint32:
      return work(uint32_t{});
    case ncclInt64:
      return work(int64_t{});
    case ncclUint64:
      return work(uint64_t{});
    case ncclFloat16:
      return work(Half{});
    case ncclBfloat16:
      return work(Bfloat16{});
    case ncclFloat64:
      return work(double{});
    case ncclFloat8e4m3:
      return work(Float8E4m3{});
    case ncclFloat8e5m2:
      return work(Float8E5m2{});
    default:
      return work(float{});
  }
}

template <class T, bool kScale = false>
void fold_by(Arithmetic arithmetic, std::byte* dst, const std::vector<Input>& inputs, size_t count) {
  switch (arithmetic) {
    case Arithmetic::prod:
      return fold<T, Prod, false>(dst, inputs, count);
    case Arithmetic::max:
      return fold<T, Max, false>(dst, inputs, count);
    case Arithmetic::min:
      return fold<T, Min, false>(dst, inputs, count);
    default:
      return fold<T, Sum, kScale>(dst, inputs, count);
  }
}

}  // namespace

bool is_integer(ncclDataType_t dtype) { return dtype >= ncclInt8 && dtype <= ncclUint64; }

uint64_t reciprocal_bits(ncclDataType_t dtype, int n) {
  return with_type(dtype, [n](auto zero) {
    const auto value = reciprocal<decltype(zero)>(n);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  });
}

void reduce(const Reduction& how, std::byte* dst, const std::vector<Input>& inputs, size_t count) {
  with_type(how.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (how.arithmetic == Arithmetic::scaled_sum)
      fold_by<T, true>(how.arithmetic, dst, inputs, count);
    else
      fold_by<T>(how.arithmetic, dst, inputs, count);
  });
  finish(how, dst, count);
}

void enter(const Reduction& how, std::byte* dst, const Input& input, size_t count) {
  reduce({how.dtype, how.arithmetic == Arithmetic::scaled_sum ? Arithmetic::scaled_sum : Arithmetic::sum}, dst, {input},
         count);
}

void combine(const Reduction& how, std::byte* dst, const std::byte* a, const std::byte* b, size_t count) {
  with_type(how.dtype, [&](auto zero) { fold_by<decltype(zero)>(how.arithmetic, dst, {{a}, {b}}, count); });
}

void finish(const Reduction& how, std::byte* dst, size_t count) {
  if (how.arithmetic != Arithmetic::divided_sum) return;
  with_type(how.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kInteger<T>) divide<T>(dst, count, how.divisor);
  });
}

}  // namespace lockstep::nccl
