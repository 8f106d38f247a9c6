// SPDX-License-Identifier: MIT
//
// Where the tensor in a rank's hands lies in the tensor that all ranks hold together. Three forms: the whole tensor; a
// slice, begin to end in each dimension (tensor, context and expert parallelism); ranges of the flattened tensor (the
// shards of ZeRO and FSDP, which know no dimensions). In a file it is a line of JSON, see docs/dump-format.md.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "interpose/trace/result.h"

namespace lockstep::dump {

using Range = std::array<int64_t, 2>;  // [begin, end)

struct Placement {
  std::vector<int64_t> global;    // shape of the tensor that all ranks hold together
  std::vector<Range> slice = {};  // per dimension; empty: the whole tensor
  std::vector<Range> flat =
      {};  // or: ranges of the flattened tensor, in order; {{0, 0}} for a rank that holds nothing of it
  enum class Kind {
    owned,    // nobody else has these elements
    replica,  // others have them too, and theirs are equal bit for bit
    partial,  // a summand: the values are the sum over the ranks
  } kind = Kind::owned;
};

const char* name_of(Placement::Kind kind);

// Elements of a shape; -1 where the number does not fit.
int64_t elements_of(const std::vector<int64_t>& shape);
std::string shape_text(const std::vector<int64_t>& shape);  // "[3, 4]"

// What is wrong with the placement of a local tensor of this shape, as the end of a sentence; empty when nothing is.
std::string placement_fault(const Placement& placement, const std::vector<int64_t>& local_shape);

std::string placement_text(const Placement& placement);  // the JSON
// What the JSON leaves out is taken from the local tensor: no "global" means its shape; no "kind" means owned for a
// part of the tensor, and for a whole one replica, which is what data parallel ranks have.
Result<Placement> placement_of(const std::string& json, const std::vector<int64_t>& local_shape);

// The offset in the global tensor of element `local` of this shard.
int64_t global_offset(const Placement& placement, int64_t local);
// The same for all elements: ranges of the flattened global tensor, in the order of the shard's own elements,
// ascending.
std::vector<Range> runs_of(const Placement& placement);

// [3, 17] for an offset in a tensor of this shape.
std::vector<int64_t> index_of(int64_t offset, const std::vector<int64_t>& shape);

}  // namespace lockstep::dump
