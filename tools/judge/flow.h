// SPDX-License-Identifier: MIT
//
// What cannot complete, as NCCL works: a stream does one thing at a time, so all that was put on it behind a stuck
// operation is stuck too; a collective that is stuck on one member is stuck on all; so is a message at both ends, and
// the messages of one group on a communicator complete together or not at all. Starting from the waits in which
// somebody is missing, this follows those rules to every operation they hold up, whichever rank and stream it is on.
//
// Operations known to have completed are left out. What a ring has lost is older than what is on record, and taken to
// have completed.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tools/judge/rules.h"

namespace lockstep {

// A message as both ends know it: communicator, sender, receiver (ranks of the communicator), number on that edge.
struct EdgeKey {
  size_t comm = 0;
  int from = -1, to = -1;
  bool operator<(const EdgeKey& other) const {
    return std::tie(comm, from, to) < std::tie(other.comm, other.from, other.to);
  }
};
EdgeKey edge_of(size_t comm, const Member& member, const trace::Call& call);
EdgeKey edge_of(const Table& table, const Finding& mismatch);  // of two sizes of one message

// The numbers of a member's messages, on the edges of its communicator: as recorded, else counted.
std::vector<uint64_t> edge_numbers(const Member& member);

class Flow {
 public:
  explicit Flow(const Evidence& evidence);

  void block(const Wait& wait);               // all that can go on only when this wait ends
  void block_row(size_t comm, uint64_t seq);  // this collective never completes
  void block(const Finding& mismatch);        // what calls that differ may hold up, once their turn has come
  void block_message(const EdgeKey& edge, uint64_t number);
  bool holds(size_t rank) const;  // is something of the rank's stuck?
  bool holds_row(size_t comm, uint64_t seq) const;
  // Is something on the rank's streams in front of this collective that is stuck, or not known to have completed?
  bool is_clear_before(size_t rank, size_t comm, uint64_t seq) const;
  // Is a collective that is known not to have completed in front of this message, at either end?
  bool is_behind_row(const EdgeKey& edge, uint64_t number) const;
  // Is this message in one group with others, at an end that has made its half?
  bool is_one_of_several(const EdgeKey& edge, uint64_t number) const;
  // Has everything the rank launched completed, as far as is known? False when it is not known.
  bool all_completed(size_t rank) const;
  // Per stream of a rank what is first in line, in order. Where it is not known what has completed, the newest.
  struct InLine {
    size_t comm = 0;
    uint64_t seq = 0;  // of a collective; of a message its number on the edge
    bool message = false;
    EdgeKey edge;
    uint32_t group = 0;  // 0 = none
  };
  std::vector<std::vector<InLine>> in_line(size_t rank, size_t most) const;

 private:
  struct Op {
    uint64_t event = 0;
    size_t comm = 0, member = 0;
    uint64_t seq = 0;  // of a collective
    bool message = false;
    EdgeKey edge;
    uint64_t number = 0;  // on the edge
    uint32_t group = 0;
  };
  using Stream = std::vector<Op>;  // in order
  struct Place {
    size_t rank = 0, stream = 0, at = 0;
  };
  // Where everything is; made once and shared by all copies.
  struct Layout {
    std::vector<std::vector<Stream>> streams;                     // by rank
    std::vector<std::unordered_map<uint64_t, size_t>> stream_of;  // by rank: handle -> index
    std::vector<std::vector<const Member*>> members;              // by rank
    std::vector<std::vector<std::vector<std::pair<uint64_t, Place>>>>
        rows;  // by communicator and member: ascending seq
    std::map<EdgeKey, std::map<uint64_t, std::vector<Place>>> messages;
    std::vector<uint64_t> unfinished, seen;  // by rank: operations not known to have completed, and those on record
  };
  using Done = std::vector<std::unordered_map<uint64_t, uint64_t>>;  // by rank: stream -> newest event completed
  static void add_ops_of(const Comm& comm, size_t index, size_t at, Layout& layout, Done& done);
  static void settle(size_t rank, Layout& layout);
  const std::vector<Place>& halves_of(const EdgeKey& edge, uint64_t number) const;  // of a message, as far as made
  void lower(const Place& place);
  void lower_row(size_t comm, uint64_t seq);
  void lower_edge(const EdgeKey& edge, uint64_t number);
  void drain();

  const Evidence& evidence_;
  std::shared_ptr<const Layout> layout_;
  std::vector<std::vector<size_t>> stuck_;  // by rank and stream: from here on
  std::vector<uint64_t> floor_;             // by communicator: rows from here on are stuck
  std::vector<Place> lowered_;              // whose consequences drain() has still to follow
};

}  // namespace lockstep
