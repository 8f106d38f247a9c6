// SPDX-License-Identifier: MIT
//
// A global tensor, put together from the ranks' shards without copying them: a list of pieces in the order of the
// flattened tensor, each a run of elements in some rank's mapped file. A reader walks it block by block, so that a
// tensor of any size costs the memory of its list and of one block.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "verify/dump/folder.h"

namespace lockstep::verify {

using dump::Dtype;

struct Piece {
  int64_t begin, end;  // of the flattened global tensor
  int rank;            // whose file it is in
  const std::byte* data;
};

struct GlobalTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  std::vector<Piece> pieces;  // in order, without gaps unless a fault says so, without overlaps
  std::vector<std::vector<Piece>>
      summands;  // of partial tensors, a list a rank; the value is their sum, computed in double
};

// Where the elements of a shard lie: runs that are contiguous both in its file and in the global tensor, in order.
std::vector<Piece> runs_of(const dump::Shard& shard);

// The piece that holds an element; null in a gap.
const Piece* piece_at(const GlobalTensor& tensor, int64_t element);

// A tensor's elements in blocks, ascending. A sum of partial tensors is given as F64.
class BlockReader {
 public:
  static constexpr int64_t kBlock = 4096;

  explicit BlockReader(const GlobalTensor& tensor);
  Dtype dtype() const { return dtype_; }
  // `count` <= kBlock elements from `begin` on; valid until the next call. Where there is a gap the bytes are zero.
  const std::byte* block(int64_t begin, int64_t count);

 private:
  const std::byte* sum(int64_t begin, int64_t count);
  const GlobalTensor& tensor_;
  Dtype dtype_;
  size_t at_ = 0;  // the first piece that ends behind the last block's begin
  std::vector<size_t> summand_at_;
  std::vector<std::byte> gathered_;
  std::vector<double> addend_;
};

// One element as a double, and as text that gives exactly this value again.
double value_at(const GlobalTensor& tensor, int64_t element);
std::string value_text(const GlobalTensor& tensor, int64_t element);

}  // namespace lockstep::verify
