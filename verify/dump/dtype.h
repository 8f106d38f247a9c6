// SPDX-License-Identifier: MIT
//
// The element types of a dump, by the names that safetensors gives them, and their values as doubles, in which
// everything is compared: a double holds each value of every type but I64 exactly, and I64 is only ever compared bit
// for bit.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::dump {

enum class Dtype { f64, f32, f16, bf16, i64, i32, i8, u8, boolean };

inline constexpr Dtype kDtypes[] = {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16,   Dtype::i64,
                                    Dtype::i32, Dtype::i8,  Dtype::u8,  Dtype::boolean};

const char* name_of(Dtype dtype);  // "F64", "BF16", "BOOL"
std::optional<Dtype> dtype_named(std::string_view name);
size_t size_of(Dtype dtype);  // bytes of one element

constexpr bool is_float(Dtype dtype) { return dtype <= Dtype::bf16; }

// `count` elements at `data`, which need not be aligned.
void to_double(Dtype dtype, const void* data, size_t count, double* out);

// The nearest value of the type.
void from_double(Dtype dtype, double value, void* out);
// An element in as few digits as give exactly this value again.
std::string value_text(Dtype dtype, const void* data);

// Is there a NaN or an infinity among these? Never among whole numbers.
bool any_special(Dtype dtype, const void* data, size_t count);

// How many representable values lie between two floats of one type; the largest number where one of them is a NaN.
uint64_t ulp_distance(Dtype dtype, const void* a, const void* b);
uint64_t max_ulp_distance(Dtype dtype, const void* a, const void* b, size_t count);

}  // namespace lockstep::dump
