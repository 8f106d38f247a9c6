// SPDX-License-Identifier: MIT
//
// What torchrun or mpirun do for a training: starts the ranks as processes, carries rank 0's NCCL id to the others, and
// is the place where ranks meet outside of NCCL. Every rank holds one end of a socket pair, its Link.
//
// The ranks are the same program started anew (not merely forked), so no rank inherits anything of CUDA. They get RANK,
// LOCAL_RANK and WORLD_SIZE as from any launcher. When a rank fails, the others are ended, as torchrun does; when one
// exits with status 0 the launcher sees nothing wrong and goes on waiting: that is how such hangs stay unnoticed.

#pragma once

#include <array>
#include <optional>

#include "reference/demo/options.h"

namespace demo {

using IdBytes = std::array<char, 128>;

// A rank's end. A rank whose launcher is gone ends in the next of these calls.
class Link {
 public:
  explicit Link(int fd) : fd_(fd) {}
  int fd() const { return fd_; }             // readable when the launcher has said something
  void publish_id(const IdBytes& id) const;  // rank 0
  IdBytes receive_id() const;                // the others
  void arrive(int steps) const;              // "my epoch is over"
  void all_arrived() const;                  // the launcher's answer, once all have arrived

 private:
  int fd_;
};

struct RankPlace {
  int rank;
  Link link;
};
// Where this process stands when a launcher of ours started it.
std::optional<RankPlace> find_launcher();

// Starts the ranks, serves them until all have ended, and returns the exit status of the job.
int launch(const Options& options, char** argv);

}  // namespace demo
