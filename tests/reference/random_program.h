// SPDX-License-Identifier: MIT
//
// Random legal programs over two communicators, and what a machine that does one thing at a time makes of them.
//
// A program is the same list of steps for all ranks. What makes it legal: all ranks issue the operations of a
// communicator in one order, and whatever touches the same memory is ordered by events; streams, and when a rank waits,
// are each rank's own choice and not part of the program. So any order in which a correct runtime may do things ends
// with the same bytes, those that simulate() finds by doing one after the other.
//
// Numbers are exact: integers wrap, and a floating-point reduction is always preceded by a fill of its source with
// values whose sums and products have no rounding, so the oracle need not know in which order the runtime reduces.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nccl.h"

namespace lockstep::test {

inline constexpr size_t kBuffers = 8;

enum class Kind {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  messages,     // many at once, in a group
  one_message,  // a send and a receive on their own
  copy,
  copy_by_host,
  set,
  add,   // by a host function
  fill,  // the same: exact numbers of a type
  count
};
inline bool communicates(Kind kind) { return kind <= Kind::one_message; }
inline bool reduces(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

struct Message {
  int from = 0;
  int to = 0;
  size_t send_at = 0;  // bytes from the begin of the buffer
  size_t recv_at = 0;
  size_t send_count = 0;
  size_t recv_count = 0;  // at most what is sent
};

struct Operation {
  Kind kind = Kind::copy;
  int comm = 0;
  ncclDataType_t dtype = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int root = 0;  // rank of the communicator
  size_t count = 0;
  size_t src = 0;  // buffers
  size_t dst = 0;
  size_t src_at = 0;  // bytes into them
  size_t dst_at = 0;
  bool in_place = false;          // send and receive buffers as NCCL's in-place rules want them; src is dst
  unsigned value = 0;             // of set and fill
  std::vector<Message> messages;  // between ranks of the communicator
};

// Operations of one step share no buffer. More than one: a group.
using Step = std::vector<Operation>;

struct Shape {
  int ranks = 0;
  std::vector<int> second;  // the ranks of the second communicator, by their rank in it
};

struct Program {
  Shape shape;
  size_t length = 0;  // of every buffer, in bytes
  std::vector<Step> steps;

  // Ranks of the job by rank in a communicator.
  std::vector<int> members(int comm) const;
};

Program draw(unsigned seed, const Shape& shape);

using Bytes = std::vector<uint8_t>;
using Memory = std::vector<Bytes>;  // of one rank, by buffer

Bytes initial(int rank, size_t buffer, size_t length);
std::vector<Memory> simulate(const Program& program);
uint64_t hash(const uint8_t* at, size_t length);

size_t size_of(ncclDataType_t dtype);
void add_to(uint8_t* at, size_t length, unsigned value);
void fill_exact(uint8_t* at, size_t length, ncclDataType_t dtype, unsigned value);

std::string describe(const Operation& operation);

}  // namespace lockstep::test
