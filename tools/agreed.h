// SPDX-License-Identifier: MIT
//
// What need not be kept of a job's traces: collectives that all members of a communicator made alike and completed long
// ago. Without them the memory of a diagnosis grows with the ranks and what is still open, not with all calls ever made.
//
// Nothing that any rule looks at is left out: a call goes only when its row was made alike by every member (one that was
// not makes the whole job be kept), completed on all of them, and lies well before the first row that did not. The first
// call of each signature stays, and the last of those left out of each stream and thread; so do messages, and all that
// is in groups. Jobs with calls of count 0, digests, or two threads at once on a communicator are kept whole, and so are
// communicators whose completions are not known.

#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "interpose/trace/reader.h"

namespace lockstep {

class AgreedRows {
 public:
  static constexpr uint64_t kKeptRows = 64;  // before the first row that is still open somewhere
  explicit AgreedRows(uint64_t kept_rows = kKeptRows) : kept_rows_(kept_rows) {}

  // First the heads of all files, in order, without their events ...
  void add_head(const trace::TraceFile& head, size_t file);
  // ... then this, which says of which files the rows are to be learnt ...
  std::vector<size_t> settle();
  // ... then their calls, and from there on any file can be made smaller; by several threads at once.
  void learn(const trace::TraceFile& file, size_t number);
  // False when the job is not one of those; the file is then as it was, and all others are to be read again and kept.
  bool shrink(trace::TraceFile& file) const;

 private:
  struct Row {
    uint64_t seq = 0, count = 0;
    uint16_t fn = 0;
    uint8_t dtype = 0;
    bool first = false;  // of its signature
    int32_t redop = 0, peer = -1;
    bool is_like(const trace::Call& call) const;
  };
  struct Rows {
    size_t files = 0, first_file = 0, last_file = 0;
    int nranks = -1;
    uint64_t end = UINT64_MAX;  // rows from here on are kept
    bool usable = true;
    std::vector<Row> rows;      // by seq
    const Row* at(uint64_t seq) const;
  };
  uint64_t kept_rows_;
  std::unordered_map<uint64_t, Rows> comms_;  // by id
};

}  // namespace lockstep
