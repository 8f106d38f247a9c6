// SPDX-License-Identifier: MIT
//
// The traces of a job of any number of ranks, without the job: one rank's trace is written by the real writer, and the
// others are that file with another name, rank and pid. Only what a process wrote is stored; the rest of a file is a
// hole.
//
// The job: one communicator of all ranks, AllReduce, AllGather and ReduceScatter in turn, each from one of 64 call
// paths of 20 frames, a mark for every step of 10 calls; states are watched, as where a CUDA driver is. One rank never
// makes the last call; the host threads of all others wait for it. Its call `odd` has one element more. With extras a
// call with count 0 follows each step, results have digests, two threads call in turn and overlap, and a watchdog polls
// the communicator.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interpose/trace/writer.h"

namespace lockstep::bench {

class MadeTraces {
 public:
  // An error ends the program: a benchmark without its data has nothing to say.
  MadeTraces(const std::string& scratch, int ranks, uint64_t calls, bool extras = false, uint64_t odd = UINT64_MAX);

  uint64_t bytes_per_rank() const;  // on disk
  uint64_t events_per_rank() const { return events_; }
  void write(const std::string& folder) const;

  int culprit() const { return ranks_ / 3; }
  uint64_t missing_seq() const { return calls_ - 1; }

 private:
  struct Piece {
    uint64_t offset;
    std::vector<uint8_t> bytes;
  };
  struct Image {
    std::vector<Piece> pieces;
    uint64_t size = 0;
  };
  Image make_image(const std::string& scratch, bool is_culprit);
  void write_one(const std::string& folder, Image& image, int rank) const;

  int ranks_;
  uint64_t calls_, events_ = 0;
  bool extras_;
  uint64_t odd_;
  Image other_, culprits_;
};

}  // namespace lockstep::bench
