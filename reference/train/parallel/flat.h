// SPDX-License-Identifier: MIT
//
// Parameters one after another in one buffer, cut evenly over the ranks of a group: the layout in which ZeRO and FSDP
// reduce and gather. Only the end of the buffer is padded, to a multiple of the ranks, so a rank's shard may begin and
// end inside a parameter.

#pragma once

#include <vector>

#include "reference/train/core/strategy.h"
#include "reference/train/parallel/setup.h"

namespace train {

struct Flat {
  std::vector<Parameter*> parameters;
  std::vector<int64_t> begins;  // of each
  int64_t size = 0;             // elements of all
  int64_t padded = 0;
  int ranks = 1;

  Flat() = default;
  Flat(std::vector<Parameter*> all, int ranks_of_group);
  int64_t shard_size() const { return padded / ranks; }
  View shard(View whole, int rank) const { return whole.part(rank * shard_size(), shard_size()); }

  // The parts of parameters in a rank's shard.
  struct Piece {
    Parameter* parameter;
    int64_t begin, count;  // in the parameter
    int64_t at;            // in the shard
  };
  std::vector<Piece> pieces(int rank) const;

  void bind_values(View whole) const;     // parameter->value = its part
  void bind_gradients(View whole) const;  // parameter->grad = its part, not yet written
  // Gradients that no module wrote become zero.
  void zero_unwritten(const Stream& compute) const;
};

// What the optimizer needs for one shard: moments, and master weights where values are rounded.
struct ShardState {
  View master, first, second;
};
ShardState make_state(const Setup& setup, View value_shard);
void add_owned(std::vector<Owned>& owned, const Flat& flat, int rank, View value, View gradient,
               const ShardState& state);

}  // namespace train
