// SPDX-License-Identifier: MIT
//
// From ranks to a table: per communicator, row i holds the i-th collective of each member.
//
// Rows are matched by the communicator's own sequence numbers and nothing else: ranks issue different numbers of other
// calls, rings wrap, clocks differ between hosts. A communicator is known by NCCL's id plus a generation, since handles
// and, with a fixed rendezvous, even ids come again. The generation is counted here per (id, rank) from the order in
// which a process made them, so that ranks that are threads of one process do not count each other's.
//
// What a member launched is known from the fixed area of its trace even when the ring no longer holds the calls. A call
// inside a group that was never closed is not launched.
//
// Point-to-point calls are kept per member in their order; matching them by edge is work of its own and not done here.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/job/job.h"

namespace lockstep {

// What must agree among the members of a row. Broadcast and Bcast are one operation; operators made at run time have no
// number that peers share, so all of them count as one.
struct Signature {
  std::string op;
  uint64_t count = 0;
  std::string dtype;
  std::optional<std::string> redop;
  std::optional<int> root;  // rank in the communicator

  bool operator==(const Signature& other) const {
    return op == other.op && count == other.count && dtype == other.dtype && redop == other.redop && root == other.root;
  }
};

struct Member {
  size_t rank = 0;  // index into Run::ranks
  int comm_rank = -1;
  const trace::CommInfo* info = nullptr;
  const trace::TraceFile* file = nullptr;
  uint64_t called = 0;                          // collectives called so far = number of the next
  uint64_t launched = 0;                        // less those in a group that is still open
  std::vector<const trace::Call*> collectives;  // those still on record, ascending seq
  std::vector<const trace::Call*> zero_calls;   // count 0: enqueued nothing; see next_seq
  std::vector<uint64_t> zero_next_seq;          // for each of them, the number of the collective that follows it
  std::vector<const trace::Call*> p2p;          // launched, in order of calling
  size_t p2p_held = 0;                          // in a group that is still open
  uint64_t p2p_left_out = 0;                    // messages done long ago, which the loader has not kept

  // nullptr = not called, or no longer on record.
  const trace::Call* call_at(uint64_t seq) const;
};

struct Comm {
  uint64_t id = 0;
  uint32_t generation = 0;
  uint64_t parent_id = 0;
  std::string name;             // as verdicts call it
  int nranks = -1;              // -1 = not known (every init call is still open, or a split)
  std::vector<Member> members;  // with evidence, by rank in the communicator

  bool complete() const { return nranks > 0 && static_cast<int>(members.size()) == nranks; }
};

struct Table {
  std::vector<Comm> comms;  // largest first, then by the time they were made
};

Table match(const Run& run);

Signature signature_of(const trace::Call& call);

// "AllReduce", or "function 321" for one this build does not know. Bcast reads Broadcast.
std::string op_name(const trace::Call& call);

bool is_collective(const trace::Call& call);
bool is_p2p(const trace::Call& call);

// Is its result the same on all ranks by definition?
bool has_one_result(uint16_t fn);

// Did it come back with an error? Such a call enqueued nothing and takes no number.
bool has_failed(const trace::Call& call);

std::string comm_id_text(const Comm& comm);

}  // namespace lockstep
