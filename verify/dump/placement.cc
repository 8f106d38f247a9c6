// SPDX-License-Identifier: MIT

#include "verify/dump/placement.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

namespace lockstep::dump {
namespace {

using nlohmann::json;

std::string range_text(const Range& range) { return std::to_string(range[0]) + ":" + std::to_string(range[1]); }

std::string slice_fault(const Placement& placement, const std::vector<int64_t>& local_shape) {
  if (placement.slice.size() != placement.global.size())
    return "its slice has " + std::to_string(placement.slice.size()) + " dimensions, the global shape " +
           shape_text(placement.global);
  std::vector<int64_t> extents;
  for (size_t d = 0; d < placement.slice.size(); d++) {
    const auto [begin, end] = placement.slice[d];
    if (begin < 0 || begin > end || end > placement.global[d])
      return "its slice " + range_text(placement.slice[d]) + " of dimension " + std::to_string(d) +
             " is not within the global shape " + shape_text(placement.global);
    extents.push_back(end - begin);
  }
  if (extents != local_shape)
    return "its slice is of shape " + shape_text(extents) + ", the tensor itself " + shape_text(local_shape);
  return "";
}

std::string flat_fault(const Placement& placement, int64_t local) {
  const int64_t all = elements_of(placement.global);
  int64_t last = 0, count = 0;
  for (const Range& range : placement.flat) {
    if (range[0] < last || range[1] < range[0] || range[1] > all)
      return "its range " + range_text(range) + " is out of order, overlaps the one before, or leaves the " +
             std::to_string(all) + " elements of the global shape " + shape_text(placement.global);
    last = range[1];
    count += range[1] - range[0];
  }
  if (count != local)
    return "its ranges hold " + std::to_string(count) + " elements, the tensor itself " + std::to_string(local);
  return "";
}

bool read_ranges(const json& value, std::vector<Range>& out) {
  if (!value.is_array()) return false;
  for (const json& each : value) {
    if (!each.is_array() || each.size() != 2 || !each[0].is_number_integer() || !each[1].is_number_integer())
      return false;
    out.push_back({each[0].get<int64_t>(), each[1].get<int64_t>()});
  }
  return true;
}

bool read_shape(const json& value, std::vector<int64_t>& out) {
  if (!value.is_array()) return false;
  for (const json& each : value) {
    if (!each.is_number_integer()) return false;
    out.push_back(each.get<int64_t>());
  }
  return true;
}

std::optional<Placement::Kind> kind_named(const json& value) {
  for (const auto kind : {Placement::Kind::owned, Placement::Kind::replica, Placement::Kind::partial})
    if (value.is_string() && value.get<std::string>() == name_of(kind)) return kind;
  return std::nullopt;
}

}  // namespace

const char* name_of(Placement::Kind kind) {
  return kind == Placement::Kind::owned ? "owned" : kind == Placement::Kind::replica ? "replica" : "partial";
}

int64_t elements_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) return -1;
    if (__builtin_mul_overflow(count, extent, &count)) return -1;
  }
  return count;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); d++) text += (d ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

std::string placement_fault(const Placement& placement, const std::vector<int64_t>& local_shape) {
  if (elements_of(placement.global) < 0)
    return "its global shape " + shape_text(placement.global) + " has a negative extent or too many elements";
  if (!placement.slice.empty() && !placement.flat.empty()) return "it has both a slice and flat ranges";
  if (!placement.slice.empty()) return slice_fault(placement, local_shape);
  if (!placement.flat.empty()) return flat_fault(placement, elements_of(local_shape));
  if (placement.global != local_shape)
    return "it has neither a slice nor flat ranges, so it is whole, but its shape " + shape_text(local_shape) +
           " is not the global shape " + shape_text(placement.global);
  return "";
}

std::string placement_text(const Placement& placement) {
  nlohmann::ordered_json out;
  out["global"] = placement.global;
  if (!placement.slice.empty()) out["slice"] = placement.slice;
  if (!placement.flat.empty()) out["flat"] = placement.flat;
  out["kind"] = name_of(placement.kind);
  return out.dump();
}

Result<Placement> placement_of(const std::string& text, const std::vector<int64_t>& local_shape) {
  const json read = json::parse(text, nullptr, false);
  if (!read.is_object())
    return Error{"its placement is not a JSON object such as {\"global\": [8, 4], \"slice\": [[0, 4], [0, 4]]}"};
  Placement placement;
  for (const auto& [key, value] : read.items()) {
    if (key == "global"  ? !read_shape(value, placement.global)
        : key == "slice" ? !read_ranges(value, placement.slice)
        : key == "flat"  ? !read_ranges(value, placement.flat)
                         : key != "kind")
      return Error{"the \"" + key +
                   "\" of its placement cannot be read; a placement has global: [n, ...], slice: [[begin, end], ...] "
                   "or flat: [[begin, end], ...], and kind"};
  }
  if (!read.contains("global")) placement.global = local_shape;
  const bool whole = placement.slice.empty() && placement.flat.empty();
  placement.kind = whole ? Placement::Kind::replica : Placement::Kind::owned;
  if (read.contains("kind")) {
    const std::optional<Placement::Kind> kind = kind_named(read["kind"]);
    if (!kind) return Error{"the kind of its placement is none of owned, replica and partial"};
    placement.kind = *kind;
  }
  if (const std::string fault = placement_fault(placement, local_shape); !fault.empty()) return Error{fault};
  return placement;
}

int64_t global_offset(const Placement& placement, int64_t local) {
  if (!placement.flat.empty()) {
    for (const auto& [begin, end] : placement.flat) {
      if (local < end - begin) return begin + local;
      local -= end - begin;
    }
    return -1;
  }
  if (placement.slice.empty()) return local;
  int64_t offset = 0, stride = 1;
  for (size_t d = placement.slice.size(); d-- > 0;) {
    const auto [begin, end] = placement.slice[d];
    if (begin == end) return -1;
    offset += (begin + local % (end - begin)) * stride;
    local /= end - begin;
    stride *= placement.global[d];
  }
  return offset;
}

std::vector<int64_t> index_of(int64_t offset, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    const int64_t extent = shape[d] > 0 ? shape[d] : 1;
    index[d] = offset % extent;
    offset /= extent;
  }
  return index;
}

}  // namespace lockstep::dump
