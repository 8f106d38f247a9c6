// SPDX-License-Identifier: MIT
//
// What need not be kept of a job's traces: calls that all ranks made alike and completed long ago. Without them the
// memory of a diagnosis grows with the ranks and what is still open, not with all calls ever made.
//
// Calls are compared by blocks: of each communicator 64 rows, of each edge (communicator, sender, receiver) 64
// messages. A file that is loaded gives one sum for each block that it has whole (what was called and with which
// arguments, calls with count 0 in between, digests of results that are the same on all ranks), and what it has of a
// block goes when every rank has completed it long ago. Where a sum differs from another's, the file is not what it
// seemed to agree to: the blocks that differ first are noted, and all files are loaded again with those blocks kept.
//
// So nothing goes that a rule compares, but for one thing: a ring that has wrapped begins in the middle of a block, and
// those of its oldest rows, 63 at most, are compared only with others that begin there. What rules look for beyond
// comparing stays: calls that have not returned, failed or are captured, all that makes or ends communicators, the
// first call of each signature, the newest of those that would go for each communicator, stream and thread, and the
// first two calls of two threads at once. A group goes as a whole or not at all. Of marks the first and the newest
// steps stay.
//
// Communicators whose id comes again in a process are kept, and messages whose completion is not known.

#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "interpose/trace/reader.h"

namespace lockstep {

class AgreedCalls {
 public:
  static constexpr uint64_t kKeptRows = 64;  // before the first row that is still open somewhere
  static constexpr uint64_t kBlock = 64;
  explicit AgreedCalls(uint64_t kept_rows = kKeptRows, uint64_t block = kBlock) : kept_(kept_rows), block_(block) {}

  // First the heads of all files, without their events ...
  void add_head(const trace::TraceFile& head);
  // ... then the files, in any order and by several threads at once. How many messages of each communicator (by serial)
  // went is told.
  std::map<uint32_t, uint64_t> shrink(trace::TraceFile& file);
  // When all are through: did a sum differ? Then they are to be loaded and shrunk again; the second time is the last.
  bool keep_what_differs();

 private:
  using Edge = std::tuple<uint64_t, int, int>;  // communicator, sender, receiver
  struct Blocks {
    std::unordered_map<uint64_t, uint64_t> sums;
    std::set<uint64_t> differ;  // the first few whose sums do
    bool stays(uint64_t block) const;
  };
  struct Comm {
    int nranks = -1;
    uint64_t end = UINT64_MAX;  // rows from here on stay
    bool usable = true;
    Blocks rows;
  };
  class File;

  uint64_t end_of(const trace::CommInfo& info) const;
  void compare(Blocks& known, uint64_t block, uint64_t sum);

  const uint64_t kept_, block_;
  std::unordered_map<uint64_t, Comm> comms_;  // by id
  std::map<Edge, Blocks> edges_;
  std::mutex lock_;  // of all sums; the second time nothing changes any more
  bool differs_ = false, settled_ = false;
};

}  // namespace lockstep
