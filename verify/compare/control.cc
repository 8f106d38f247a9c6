// SPDX-License-Identifier: MIT

#include "verify/compare/control.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "verify/compare/values.h"

namespace lockstep::verify {
namespace {

using Element = std::array<std::byte, sizeof(double)>;

// The tensor with one element taken from elsewhere, and the rest where it was.
GlobalTensor with_element(const GlobalTensor& tensor, int64_t element, const Element& bytes) {
  GlobalTensor out = tensor;
  const size_t size = dump::size_of(tensor.dtype);
  const auto piece =
      std::find_if(out.pieces.begin(), out.pieces.end(), [&](const Piece& each) { return element < each.end; });
  const Piece old = *piece;
  const Piece rest{element + 1, old.end, old.rank, old.data + static_cast<size_t>(element + 1 - old.begin) * size};
  std::vector<Piece> parts = {
      {old.begin, element, old.rank, old.data}, {element, element + 1, old.rank, bytes.data()}, rest};
  parts.erase(std::remove_if(parts.begin(), parts.end(), [](const Piece& part) { return part.begin == part.end; }),
              parts.end());
  out.pieces.insert(out.pieces.erase(piece), parts.begin(), parts.end());
  return out;
}

double norm_of(const GlobalTensor& tensor) {
  const GlobalTensor nothing{tensor.name, tensor.dtype, tensor.shape, tensor.elements, {}, {}};
  return compare_values(tensor, nothing, {}).norm_a;
}

std::string moved_value_fault(const GlobalTensor& tensor, int64_t element, const Element& flipped,
                              const Tolerance& tolerance) {
  Element bytes = flipped;
  if (dump::is_float(tensor.dtype)) {
    const double value = value_at(tensor, element), by = 2 * tolerance.rtol * norm_of(tensor);
    Element moved = {};
    dump::from_double(tensor.dtype, value > 0 ? value - by : value + by, moved.data());
    if (by > 0 && std::isfinite(value)) bytes = moved;
  }
  const GlobalTensor other = with_element(tensor, element, bytes);
  const Values values = compare_values(tensor, other, tolerance);
  if (values.outcome != Outcome::different) return "a change of twice the tolerance was not seen";
  const Place place = find_place(tensor, other, values, tolerance);
  const Piece* piece = piece_at(tensor, element);
  const bool found = place.first == element && place.count == 1 && place.ranks_b == std::set<int>{piece->rank};
  // Beside NaNs that are everywhere, one element cannot be told.
  return found || values.nan_a > 0 || values.inf_a > 0 ? "" : "a change was seen, but not at its place";
}

}  // namespace

Control control_of(const GlobalTensor& given, const Tolerance& tolerance) {
  GlobalTensor tensor = given;
  tensor.summands.clear();  // of a sum, one summand's values do as well
  const int64_t element = tensor.elements / 2;
  Control control{tensor.name, dump::name_of(tensor.dtype), dump::index_of(element, tensor.shape), ""};
  Element flipped = {};
  const Piece* const piece = piece_at(tensor, element);
  const size_t size = dump::size_of(tensor.dtype);
  std::memcpy(flipped.data(), piece->data + static_cast<size_t>(element - piece->begin) * size, size);
  flipped[0] ^= std::byte{1};
  if (compare_values(tensor, with_element(tensor, element, flipped), tolerance).outcome == Outcome::bitwise)
    control.fault = "a flipped bit was not seen";
  else
    control.fault = moved_value_fault(tensor, element, flipped, tolerance);
  return control;
}

}  // namespace lockstep::verify
