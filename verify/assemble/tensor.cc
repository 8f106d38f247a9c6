// SPDX-License-Identifier: MIT

#include "verify/assemble/tensor.h"

#include <algorithm>
#include <cstring>

namespace lockstep::verify {
std::vector<Piece> runs_of(const dump::Shard& shard) {
  std::vector<Piece> runs;
  const std::byte* data = shard.stored->data;
  for (const auto& [begin, end] : dump::runs_of(shard.placement)) {
    runs.push_back({begin, end, shard.rank, data});
    data += static_cast<size_t>(end - begin) * dump::size_of(shard.stored->dtype);
  }
  return runs;
}

const Piece* piece_at(const GlobalTensor& tensor, int64_t element) {
  const auto piece = std::upper_bound(tensor.pieces.begin(), tensor.pieces.end(), element,
                                      [](int64_t at, const Piece& each) { return at < each.end; });
  return piece != tensor.pieces.end() && piece->begin <= element ? &*piece : nullptr;
}

BlockReader::BlockReader(const GlobalTensor& tensor)
    : tensor_(tensor),
      dtype_(tensor.summands.empty() ? tensor.dtype : Dtype::f64),
      summand_at_(tensor.summands.size()),
      gathered_(static_cast<size_t>(kBlock) * sizeof(double)) {
  if (!tensor.summands.empty()) addend_.resize(static_cast<size_t>(kBlock));
}

const std::byte* BlockReader::block(int64_t begin, int64_t count) {
  if (!tensor_.summands.empty()) return sum(begin, count);
  const size_t bytes = dump::size_of(dtype_);
  const std::vector<Piece>& pieces = tensor_.pieces;
  const int64_t end = begin + count;
  while (at_ < pieces.size() && pieces[at_].end <= begin) at_++;
  if (at_ < pieces.size() && pieces[at_].begin <= begin && end <= pieces[at_].end)
    return pieces[at_].data + static_cast<size_t>(begin - pieces[at_].begin) * bytes;
  int64_t done = begin;
  for (size_t i = at_; i < pieces.size() && pieces[i].begin < end; i++) {
    const int64_t from = std::max(begin, pieces[i].begin), to = std::min(end, pieces[i].end);
    std::byte* const out = gathered_.data() + static_cast<size_t>(done - begin) * bytes;
    std::memset(out, 0, static_cast<size_t>(from - done) * bytes);
    std::memcpy(out + static_cast<size_t>(from - done) * bytes,
                pieces[i].data + static_cast<size_t>(from - pieces[i].begin) * bytes,
                static_cast<size_t>(to - from) * bytes);
    done = to;
  }
  std::memset(gathered_.data() + static_cast<size_t>(done - begin) * bytes, 0, static_cast<size_t>(end - done) * bytes);
  return gathered_.data();
}

const std::byte* BlockReader::sum(int64_t begin, int64_t count) {
  double* const total = reinterpret_cast<double*>(gathered_.data());
  std::fill_n(total, count, 0.0);
  const int64_t end = begin + count;
  for (size_t s = 0; s < tensor_.summands.size(); s++) {  // by rank
    const std::vector<Piece>& pieces = tensor_.summands[s];
    size_t& at = summand_at_[s];
    while (at < pieces.size() && pieces[at].end <= begin) at++;
    for (size_t i = at; i < pieces.size() && pieces[i].begin < end; i++) {
      const int64_t from = std::max(begin, pieces[i].begin), to = std::min(end, pieces[i].end);
      dump::to_double(tensor_.dtype,
                      pieces[i].data + static_cast<size_t>(from - pieces[i].begin) * dump::size_of(tensor_.dtype),
                      static_cast<size_t>(to - from), addend_.data());
      for (int64_t k = from; k < to; k++) total[k - begin] += addend_[static_cast<size_t>(k - from)];
    }
  }
  return gathered_.data();
}

double value_at(const GlobalTensor& tensor, int64_t element) {
  double value = 0;
  const Piece* const piece = tensor.summands.empty() ? piece_at(tensor, element) : nullptr;
  if (piece) {
    dump::to_double(tensor.dtype,
                    piece->data + static_cast<size_t>(element - piece->begin) * dump::size_of(tensor.dtype), 1, &value);
    return value;
  }
  BlockReader reader(tensor);
  dump::to_double(reader.dtype(), reader.block(element, 1), 1, &value);
  return value;
}

std::string value_text(const GlobalTensor& tensor, int64_t element) {
  BlockReader reader(tensor);
  return dump::value_text(reader.dtype(), reader.block(element, 1));
}

}  // namespace lockstep::verify
