// SPDX-License-Identifier: MIT

#include "verify/compare/values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace lockstep::verify {
namespace {

constexpr int64_t kBlock = BlockReader::kBlock;

// Calls each(begin, count, bytes of A, bytes of B) for block after block until it returns false.
template <class Each>
void for_blocks(BlockReader& a, BlockReader& b, int64_t elements, Each each) {
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, elements - begin);
    const std::byte* const left = a.block(begin, count);
    if (!each(begin, count, left, b.block(begin, count))) return;
  }
}

// `special`: is there a NaN or an infinity among the bits that are the same?
bool same_bits(const GlobalTensor& a, const GlobalTensor& b, bool& special) {
  BlockReader left(a), right(b);
  if (left.dtype() != right.dtype()) return false;
  bool same = true;
  const size_t bytes = dump::size_of(left.dtype());
  for_blocks(left, right, a.elements, [&](int64_t, int64_t count, const std::byte* x, const std::byte* y) {
    same = std::memcmp(x, y, static_cast<size_t>(count) * bytes) == 0;
    special = special || dump::any_special(left.dtype(), x, static_cast<size_t>(count));
    return same;
  });
  return same;
}

// Sums of one block; four lanes, so that they vectorise and always add in the same order.
template <class Real>
struct Sums {
  Real aa = 0, bb = 0, ab = 0, dd = 0;
};

Sums<double> sums_of(const double* a, const double* b, int64_t count) {
  constexpr int64_t kLanes = 4;
  double aa[kLanes] = {}, bb[kLanes] = {}, ab[kLanes] = {}, dd[kLanes] = {};
  const auto add = [&](int64_t i, int64_t lane) {
    const double d = a[i] - b[i];
    aa[lane] += a[i] * a[i];
    bb[lane] += b[i] * b[i];
    ab[lane] += a[i] * b[i];
    dd[lane] += d * d;
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; lane++) add(i + lane, lane);
  for (; i < count; i++) add(i, 0);
  const auto total = [](const double* x) { return (x[0] + x[1]) + (x[2] + x[3]); };
  return {total(aa), total(bb), total(ab), total(dd)};
}

struct Tally {
  Sums<long double> sums;  // their exponents reach further than any square of a double
  int64_t nan_a = 0, nan_b = 0, inf_a = 0, inf_b = 0;
  bool unequal_special = false;  // a NaN, or an infinity against something else
};

// For blocks with values that are not finite, or whose squares leave the range of a double.
void add_slowly(const double* a, const double* b, int64_t count, Tally& tally) {
  for (int64_t i = 0; i < count; i++) {
    const long double x = a[i], y = b[i];
    tally.nan_a += std::isnan(a[i]);
    tally.nan_b += std::isnan(b[i]);
    tally.inf_a += std::isinf(a[i]);
    tally.inf_b += std::isinf(b[i]);
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
      tally.unequal_special |= !(a[i] == b[i]);
      continue;
    }
    tally.sums.aa += x * x;
    tally.sums.bb += y * y;
    tally.sums.ab += x * y;
    tally.sums.dd += (x - y) * (x - y);
  }
}

void add_block(const double* a, const double* b, int64_t count, Tally& tally) {
  const Sums<double> sums = sums_of(a, b, count);
  constexpr double kTiny = 1e-280;
  if (!std::isfinite(sums.aa + sums.bb + sums.dd) || sums.aa < kTiny || sums.bb < kTiny ||
      (sums.dd > 0 && sums.dd < kTiny))
    return add_slowly(a, b, count, tally);
  tally.sums.aa += sums.aa;
  tally.sums.bb += sums.bb;
  tally.sums.ab += sums.ab;
  tally.sums.dd += sums.dd;
}

// Of tensors whose bits are the same.
void count_special(const GlobalTensor& a, Values& values) {
  BlockReader reader(a);
  std::vector<double> numbers(static_cast<size_t>(kBlock));
  for (int64_t begin = 0; begin < a.elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, a.elements - begin);
    dump::to_double(reader.dtype(), reader.block(begin, count), static_cast<size_t>(count), numbers.data());
    for (int64_t i = 0; i < count; i++) {
      values.nan_a += std::isnan(numbers[static_cast<size_t>(i)]);
      values.inf_a += std::isinf(numbers[static_cast<size_t>(i)]);
    }
  }
  values.nan_b = values.nan_a;
  values.inf_b = values.inf_a;
}

// Collects what a Place says, element by element in ascending order.
class PlaceFinder {
 public:
  PlaceFinder(const GlobalTensor& a, const GlobalTensor& b)
      : a_(a), b_(b), last_(a.shape.empty() ? 1 : a.shape.back()) {}

  void add(int64_t element) {
    if (place_.first < 0) place_.first = element;
    place_.count++;
    note_rank(a_, element, at_a_, end_a_, place_.ranks_a);
    note_rank(b_, element, at_b_, end_b_, place_.ranks_b);
    if (a_.shape.empty()) return;
    if (element >= row_end_) new_row(element);
    dump::Range& range = place_.box.back();
    const int64_t column = element - (row_end_ - last_);
    range = {std::min(range[0], column), std::max(range[1], column + 1)};
  }

  Place finish() {
    for (const Piece& piece : b_.pieces)
      if (!place_.ranks_b.count(piece.rank)) place_.other_ranks_b.insert(piece.rank);
    return std::move(place_);
  }

 private:
  static void note_rank(const GlobalTensor& tensor, int64_t element, size_t& at, int64_t& end, std::set<int>& ranks) {
    if (element < end) return;
    while (at < tensor.pieces.size() && tensor.pieces[at].end <= element) at++;
    if (at == tensor.pieces.size()) return;
    end = tensor.pieces[at].end;
    ranks.insert(tensor.pieces[at].rank);
  }

  void new_row(int64_t element) {
    const std::vector<int64_t> index = dump::index_of(element, a_.shape);
    row_end_ = element - index.back() + last_;
    if (place_.box.empty())
      for (const int64_t at : index) place_.box.push_back({at, at + 1});
    for (size_t d = 0; d < index.size(); d++)
      place_.box[d] = {std::min(place_.box[d][0], index[d]), std::max(place_.box[d][1], index[d] + 1)};
  }

  const GlobalTensor& a_;
  const GlobalTensor& b_;
  int64_t last_, row_end_ = 0;
  size_t at_a_ = 0, at_b_ = 0;
  int64_t end_a_ = 0, end_b_ = 0;
  Place place_;
};

}  // namespace

Values compare_values(const GlobalTensor& a, const GlobalTensor& b, const Tolerance& tolerance) {
  Values values;
  bool special = false;
  if (same_bits(a, b, special)) {
    if (special) count_special(a, values);
    if (values.nan_a > 0) {  // a NaN is the same as nothing, itself included
      values.outcome = Outcome::different;
      values.relative = std::numeric_limits<double>::infinity();
    }
    return values;
  }
  BlockReader left(a), right(b);
  const bool ulps =
      left.dtype() == right.dtype() && dump::is_float(left.dtype()) && a.summands.empty() && b.summands.empty();
  uint64_t most = 0;
  Tally tally;
  std::vector<double> x(static_cast<size_t>(kBlock)), y(static_cast<size_t>(kBlock));
  for_blocks(left, right, a.elements, [&](int64_t, int64_t count, const std::byte* p, const std::byte* q) {
    dump::to_double(left.dtype(), p, static_cast<size_t>(count), x.data());
    dump::to_double(right.dtype(), q, static_cast<size_t>(count), y.data());
    add_block(x.data(), y.data(), count, tally);
    if (ulps) most = std::max(most, dump::max_ulp_distance(left.dtype(), p, q, static_cast<size_t>(count)));
    return true;
  });
  if (ulps) values.max_ulp = most;
  values.nan_a = tally.nan_a, values.nan_b = tally.nan_b, values.inf_a = tally.inf_a, values.inf_b = tally.inf_b;
  const Sums<long double>& sums = tally.sums;
  values.norm_a = static_cast<double>(std::sqrt(sums.aa));
  values.norm_b = static_cast<double>(std::sqrt(sums.bb));
  if (sums.aa > 0 && sums.bb > 0)
    values.cosine = static_cast<double>(sums.ab / (std::sqrt(sums.aa) * std::sqrt(sums.bb)));
  const bool hopeless = tally.unequal_special || (sums.aa == 0 && sums.dd > 0);
  values.relative = hopeless      ? std::numeric_limits<double>::infinity()
                    : sums.dd > 0 ? static_cast<double>(std::sqrt(sums.dd) / std::sqrt(sums.aa))
                                  : 0;
  const bool floats = dump::is_float(left.dtype()) && dump::is_float(right.dtype());
  // Integers of 64 bits are not all doubles: of one type, they are the same in their bits or not at all.
  const bool whole_differ = !floats && left.dtype() == right.dtype();
  values.outcome = whole_differ || !(values.relative <= tolerance.rtol) ? Outcome::different : Outcome::within;
  return values;
}

Place find_place(const GlobalTensor& a, const GlobalTensor& b, const Values& values, const Tolerance& tolerance) {
  BlockReader left(a), right(b);
  const bool by_bits = !dump::is_float(left.dtype()) && left.dtype() == right.dtype();
  const size_t bytes = dump::size_of(left.dtype());
  const double each = a.elements ? values.norm_a / std::sqrt(static_cast<double>(a.elements)) : 0;
  const double share = (1 - 1e-9) * tolerance.rtol * each;
  PlaceFinder finder(a, b);
  std::vector<double> x(static_cast<size_t>(kBlock)), y(static_cast<size_t>(kBlock));
  for_blocks(left, right, a.elements, [&](int64_t begin, int64_t count, const std::byte* p, const std::byte* q) {
    if (by_bits) {
      for (int64_t i = 0; i < count; i++)
        if (std::memcmp(p + static_cast<size_t>(i) * bytes, q + static_cast<size_t>(i) * bytes, bytes) != 0)
          finder.add(begin + i);
      return true;
    }
    dump::to_double(left.dtype(), p, static_cast<size_t>(count), x.data());
    dump::to_double(right.dtype(), q, static_cast<size_t>(count), y.data());
    for (int64_t i = 0; i < count; i++) {
      const double u = x[static_cast<size_t>(i)], v = y[static_cast<size_t>(i)];
      if (u != v && !(std::fabs(u - v) <= share)) finder.add(begin + i);
    }
    return true;
  });
  return finder.finish();
}

}  // namespace lockstep::verify
