// SPDX-License-Identifier: MIT
//
// In what order the ranks' inputs of one element are summed. Data always moves the same way (ranks read each other's
// memory, see collective.h), so that order is all that an algorithm changes, and the only thing about NCCL's algorithms
// that shows in a result. Every order is a function of the number of ranks, the size and the root alone: the same
// layout gives the same bits in every run, and whoever computes an element gets the same ones.
//
//   direct  rank 0, 1, 2, ... n-1. The default.
//   ring    A chain that ends at the rank the part belongs to. All-reduce: the data is cut into n parts (multiples of
//           64 bytes); part p is summed p+1, p+2, ..., p. Reduce-scatter: the block of rank r likewise, r+1, ..., r.
//           Reduce: root+1, ..., root. (All modulo n.)
//   tree    All-reduce only. A balanced binary tree over the ranks, each with the inputs of lower ranks on its left and
//           those of higher ranks on its right: value(lo..hi) = (input(mid) + value(lo..mid-1)) + value(mid+1..hi) with
//           mid = (lo + hi + 1) / 2 and hi included. The first half of the data uses this tree, the second half the one
//           with all ranks mirrored (rank r in place of n-1-r), as NCCL's double tree does.
//
// NCCL_ALGO chooses, in NCCL's syntax: "ring,tree", "^tree", "allreduce:tree;reduce:ring" (a first part without a
// function holds for all). Where both are allowed, ring is taken. NCCL's other algorithms need hardware that is not
// here; where only those, or tree for something else than all-reduce, are allowed, the call fails as NCCL's does.
// LOCKSTEP_HOST_ORDER=rank sums as "direct" does, whatever NCCL_ALGO says.

#pragma once

#include <vector>

#include "interpose/abi/functions.h"
#include "reference/nccl/reduce.h"

namespace lockstep::nccl {

struct Comm;
struct Call;

enum class Algorithm : uint8_t { direct, ring, tree };

// What NCCL_ALGO and LOCKSTEP_HOST_ORDER say; ncclInvalidUsage (told by warn()) if that cannot be read.
ncclResult_t check_algorithm_settings();
// ncclInvalidUsage, told by warn(): nothing that is allowed can do this call.
ncclResult_t choose_algorithm(const Comm& comm, const Call& call, Algorithm& chosen);

struct Order {
  Reduction how{};
  Algorithm algorithm = Algorithm::direct;
  int nranks = 0;
  int last = -1;    // ring: the rank everything ends at; -1: the data is cut into parts
  size_t part = 0;  // ring: bytes of a part
  size_t half = 0;  // tree: bytes of the first half
};
// `span`: the bytes that are reduced in all.
Order order_of(const Comm& comm, const Call& call, size_t span);
// The bytes [at, at + bytes) of the span. inputs[r].data: rank r's, at `at`.
void reduce_in_order(const Order& order, std::byte* dst, const std::vector<Input>& inputs, size_t at, size_t bytes);

}  // namespace lockstep::nccl
