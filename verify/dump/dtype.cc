// SPDX-License-Identifier: MIT

#include "verify/dump/dtype.h"

#include <bit>
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
uint64_t distance(const void* a, const void* b, Bits infinity) {
  bool nan = false;
  const uint64_t left = ordered(a, nan, infinity), right = ordered(b, nan, infinity);
  return nan ? UINT64_MAX : left > right ? left - right : right - left;
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

uint64_t ulp_distance(Dtype dtype, const void* a, const void* b) {
  switch (dtype) {
    case Dtype::f64:
      return distance<uint64_t>(a, b, 0x7ff0000000000000);
    case Dtype::f32:
      return distance<uint32_t>(a, b, 0x7f800000);
    case Dtype::f16:
      return distance<uint16_t>(a, b, 0x7c00);
    case Dtype::bf16:
      return distance<uint16_t>(a, b, 0x7f80);
    default:
      return std::memcmp(a, b, size_of(dtype)) == 0 ? 0 : UINT64_MAX;
  }
}

}  // namespace lockstep::dump
