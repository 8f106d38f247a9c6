// SPDX-License-Identifier: MIT

#include "verify/dump/dtype.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <type_traits>

namespace lockstep::dump {
namespace {

struct DtypeFacts {
  const char* name;
  size_t size;
};
constexpr DtypeFacts kFacts[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                                 {"I32", 4}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
static_assert(std::size(kFacts) == std::size(kDtypes));

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Without a branch that depends on the value, so that it vectorises: the exponent is moved to where a float has it, and
// one multiplication by a power of two corrects its bias, for subnormal numbers too.
float from_f16(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  const uint32_t special = magnitude >= 0x0f800000 ? 0x7f800000 : 0;  // inf and nan keep an exponent of all ones
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const float value = std::bit_cast<float>(magnitude) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | special | sign);
}

template <class Stored, class Convert>
void convert(const void* data, size_t count, double* out, Convert to) {
  const char* bytes = static_cast<const char*>(data);
  for (size_t i = 0; i < count; i++) {
    Stored stored;
    std::memcpy(&stored, bytes + i * sizeof stored, sizeof stored);
    out[i] = static_cast<double>(to(stored));
  }
}

// Floats of one sign are ordered as their bits are; this orders those of both.
template <class Bits>
uint64_t ordered(const void* data, bool& nan, Bits infinity) {
  Bits bits;
  std::memcpy(&bits, data, sizeof bits);
  constexpr Bits sign = static_cast<Bits>(Bits{1} << (sizeof(Bits) * 8 - 1));
  const Bits magnitude = bits & static_cast<Bits>(~sign);
  nan |= magnitude > infinity;
  const uint64_t middle = uint64_t{1} << 63;
  return bits & sign ? middle - magnitude : middle + magnitude;
}

template <class Bits>
uint64_t max_distance(const void* a, const void* b, size_t count, Bits infinity) {
  const char* const left = static_cast<const char*>(a);
  const char* const right = static_cast<const char*>(b);
  bool nan = false;
  uint64_t most = 0;
  for (size_t i = 0; i < count * sizeof(Bits); i += sizeof(Bits)) {
    const uint64_t x = ordered(left + i, nan, infinity), y = ordered(right + i, nan, infinity);
    most = std::max(most, x > y ? x - y : y - x);
  }
  return nan ? UINT64_MAX : most;
}

template <class Bits>
bool any_from(const void* data, size_t count, Bits infinity) {
  const char* const bytes = static_cast<const char*>(data);
  Bits found = 0;
  for (size_t i = 0; i < count; i++) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    found |= static_cast<Bits>((bits & infinity) == infinity);
  }
  return found != 0;
}

// Round to nearest, ties to even, by the bits of a float: `drop` low bits go.
uint16_t rounded(uint32_t bits, int drop) {
  const uint32_t half = (1U << (drop - 1)) - 1 + (bits >> drop & 1);
  return static_cast<uint16_t>((bits + half) >> drop);
}

uint16_t to_bf16(double value) {
  const float number = static_cast<float>(value);
  return std::isnan(number) ? 0x7fc0 : rounded(std::bit_cast<uint32_t>(number), 16);
}

uint16_t to_f16(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24));
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude)) - (112U << 23);
  return sign | rounded(bits, 13);
}

template <class T>
void store(T value, void* out) {
  std::memcpy(out, &value, sizeof value);
}

template <class T>
std::string shortest(T value) {
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

template <class T>
T load(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

}  // namespace

const char* name_of(Dtype dtype) { return kFacts[static_cast<size_t>(dtype)].name; }
size_t size_of(Dtype dtype) { return kFacts[static_cast<size_t>(dtype)].size; }

std::optional<Dtype> dtype_named(std::string_view name) {
  for (const Dtype dtype : kDtypes)
    if (name == name_of(dtype)) return dtype;
  return std::nullopt;
}

void to_double(Dtype dtype, const void* data, size_t count, double* out) {
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case Dtype::f64:
      return convert<double>(data, count, out, same);
    case Dtype::f32:
      return convert<float>(data, count, out, same);
    case Dtype::f16:
      return convert<uint16_t>(data, count, out, from_f16);
    case Dtype::bf16:
      return convert<uint16_t>(data, count, out, from_bf16);
    case Dtype::i64:
      return convert<int64_t>(data, count, out, same);
    case Dtype::i32:
      return convert<int32_t>(data, count, out, same);
    case Dtype::i8:
      return convert<int8_t>(data, count, out, same);
    case Dtype::u8:
    case Dtype::boolean:
      return convert<uint8_t>(data, count, out, same);
  }
}

void from_double(Dtype dtype, double value, void* out) {
  switch (dtype) {
    case Dtype::f64:
      return store(value, out);
    case Dtype::f32:
      return store(static_cast<float>(value), out);
    case Dtype::f16:
      return store(to_f16(value), out);
    case Dtype::bf16:
      return store(to_bf16(value), out);
    case Dtype::i64:
      return store(static_cast<int64_t>(value), out);
    case Dtype::i32:
      return store(static_cast<int32_t>(value), out);
    case Dtype::i8:
      return store(static_cast<int8_t>(value), out);
    case Dtype::u8:
    case Dtype::boolean:
      return store(static_cast<uint8_t>(value), out);
  }
}

std::string value_text(Dtype dtype, const void* data) {
  if (dtype == Dtype::i64) return shortest(load<int64_t>(data));
  double value = 0;
  to_double(dtype, data, 1, &value);
  if (!is_float(dtype)) return shortest(static_cast<int64_t>(value));
  return dtype == Dtype::f64 ? shortest(value) : shortest(static_cast<float>(value));
}

bool any_special(Dtype dtype, const void* data, size_t count) {
  switch (dtype) {
    case Dtype::f64:
      return any_from<uint64_t>(data, count, 0x7ff0000000000000);
    case Dtype::f32:
      return any_from<uint32_t>(data, count, 0x7f800000);
    case Dtype::f16:
      return any_from<uint16_t>(data, count, 0x7c00);
    case Dtype::bf16:
      return any_from<uint16_t>(data, count, 0x7f80);
    default:
      return false;
  }
}

uint64_t max_ulp_distance(Dtype dtype, const void* a, const void* b, size_t count) {
  switch (dtype) {
    case Dtype::f64:
      return max_distance<uint64_t>(a, b, count, 0x7ff0000000000000);
    case Dtype::f32:
      return max_distance<uint32_t>(a, b, count, 0x7f800000);
    case Dtype::f16:
      return max_distance<uint16_t>(a, b, count, 0x7c00);
    case Dtype::bf16:
      return max_distance<uint16_t>(a, b, count, 0x7f80);
    default:
      return std::memcmp(a, b, count * size_of(dtype)) == 0 ? 0 : UINT64_MAX;
  }
}

uint64_t ulp_distance(Dtype dtype, const void* a, const void* b) { return max_ulp_distance(dtype, a, b, 1); }

}  // namespace lockstep::dump
