// SPDX-License-Identifier: MIT
//
// A rank is a number in the mixed radix of the order string: its first axis is the last digit. All groups follow from
// that: the ranks that agree in every digit but those named, and since their order by rank is their order by those
// digits, sorting is all there is to do.

#include "reference/train/core/mesh.h"

#include <algorithm>
#include <sstream>

namespace train {
namespace {

std::vector<std::string> split(const std::string& axes) {
  std::vector<std::string> names;
  std::istringstream in(axes);
  for (std::string name; std::getline(in, name, '-');) names.push_back(name);
  return names;
}

int size_of(const Shape& shape, const std::string& axis) {
  return axis == "dp" ? shape.dp : axis == "pp" ? shape.pp : axis == "cp" ? shape.cp : shape.tp;
}
int& digit(Place& place, const std::string& axis) {
  return axis == "dp" ? place.dp : axis == "pp" ? place.pp : axis == "cp" ? place.cp : place.tp;
}

bool names(const std::vector<std::string>& axes, const char* axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Whether two ranks belong to one group: they agree in every coordinate that is not named, in the experts' grid if ep
// or edp is, else in the dense one.
bool together(const Place& a, const Place& b, const std::vector<std::string>& axes) {
  if (a.pp != b.pp && !names(axes, "pp")) return false;
  if (names(axes, "ep") || names(axes, "edp"))
    return (a.ep == b.ep || names(axes, "ep")) && (a.edp == b.edp || names(axes, "edp"));
  return (a.dp == b.dp || names(axes, "dp")) && (a.cp == b.cp || names(axes, "cp")) &&
         (a.tp == b.tp || names(axes, "tp"));
}

Place place_of(int rank, const Shape& shape, const std::vector<std::string>& axes) {
  Place place;
  int rest = rank, dense = 0, stride = 1;  // dense: the rank's number among those of its pipeline stage
  for (const std::string& axis : axes) {
    const int size = size_of(shape, axis);
    digit(place, axis) = rest % size;
    rest /= size;
    if (axis == "pp") continue;
    dense += digit(place, axis) * stride;
    stride *= size;
  }
  place.ep = dense % shape.ep;
  place.edp = dense / shape.ep;
  return place;
}

}  // namespace

Mesh::Mesh(const Shape& shape) : shape_(shape) {
  const std::vector<std::string> axes = split(shape.order);
  for (int rank = 0; rank < shape.world(); ++rank) places_.push_back(place_of(rank, shape, axes));
}

int Mesh::rank(const Place& place) const {
  Place copy = place;
  int rank = 0, stride = 1;
  for (const std::string& axis : split(shape_.order)) {
    rank += digit(copy, axis) * stride;
    stride *= size_of(shape_, axis);
  }
  return rank;
}

std::vector<int> Mesh::group(int rank, const std::string& axes) const {
  const std::vector<std::string> named = split(axes);
  const Place mine = place(rank);
  std::vector<int> members;
  for (int other = 0; other < shape_.world(); ++other)
    if (together(mine, place(other), named)) members.push_back(other);
  return members;
}

std::vector<std::vector<int>> Mesh::groups(const std::string& axes) const {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < shape_.world(); ++rank)
    if (std::vector<int> members = group(rank, axes); members.front() == rank) all.push_back(std::move(members));
  return all;
}

std::string Mesh::text() const {
  std::ostringstream out;
  out << shape_.world() << (shape_.world() == 1 ? " rank" : " ranks") << " = dp " << shape_.dp << " x pp " << shape_.pp
      << " x cp " << shape_.cp << " x tp " << shape_.tp << ", order " << shape_.order << "; experts: ep " << shape_.ep
      << " x edp " << shape_.dp * shape_.cp * shape_.tp / shape_.ep
      << (shape_.pp == 1 ? " in the one stage" : " in each of " + std::to_string(shape_.pp) + " stages") << "\n\n"
      << "rank  dp  pp  cp  tp   ep edp\n";
  const auto cell = [&](int value, size_t width) {
    const std::string text = std::to_string(value);
    out << std::string(width > text.size() ? width - text.size() : 0, ' ') << text;
  };
  for (int rank = 0; rank < shape_.world(); ++rank) {
    const Place p = place(rank);
    cell(rank, 4);
    for (const int value : {p.dp, p.pp, p.cp, p.tp}) cell(value, 4);
    cell(p.ep, 5);
    cell(p.edp, 4);
    out << '\n';
  }
  for (const char* axes : {"tp", "cp", "dp", "dp-cp", "pp", "ep", "edp"}) {
    out << '\n' << axes << std::string(6 - std::string(axes).size(), ' ');
    for (const std::vector<int>& members : groups(axes)) {
      out << " [";
      for (size_t i = 0; i < members.size(); ++i) out << (i == 0 ? "" : " ") << members[i];
      out << ']';
    }
  }
  out << '\n';
  return out.str();
}

}  // namespace train
