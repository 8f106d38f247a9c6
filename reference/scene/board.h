// SPDX-License-Identifier: MIT
//
// What the ranks of a scene share besides NCCL: the unique ids, which a real job sends by MPI or a store, the flags of
// `tell` and `await`, and who has come and who has ended. One page of anonymous shared memory that the ranks inherit by
// descriptor; it is gone with them. Every cell has one writer at a time and is waited for by short sleeps, so a rank
// that dies poisons nothing.

#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "tools/scenario/scenario.h"

namespace lockstep::scene {

inline constexpr int kMaxIds = 512;
inline constexpr int kMaxFlags = 256;

struct Board {
  struct Id {
    std::atomic<uint32_t> ready;
    ncclUniqueId id;
  };
  Id ids[kMaxIds];
  std::atomic<uint32_t> flags[kMaxFlags];
  int64_t made_wall_ns;                              // before any rank
  std::atomic<uint32_t> present;                     // ranks that are ready to begin
  std::atomic<uint32_t> ended[scenario::kMaxRanks];  // by rank of the scene; written by the launcher
};

// Makes a board, or maps the one behind an inherited descriptor. nullptr and a line on stderr when that fails.
Board* create_board(int& fd);
Board* open_board(int fd);

// Cell of each flag and of each communicator's groups: the same in every process, since all read the same file.
struct BoardPlan {
  std::map<std::string, int> flags;
  std::map<std::string, int> first_id;  // by communicator; group g has cell first_id + g
  int ids = 0;
};
BoardPlan plan_board(const scenario::Scenario& scenario);

void publish_id(Board& board, int cell, const ncclUniqueId& id);
ncclUniqueId await_id(Board& board, int cell);
void raise_flag(Board& board, int cell);
void await_flag(Board& board, int cell, int64_t times);

// Returns when all ranks are there, so that none waits in NCCL for another to be started and linked.
void meet(Board& board, int ranks);

void note_end(Board& board, int scene_rank);
void await_end(Board& board, int scene_rank);

// Returns when `lockstep run` has printed a verdict on this job; without it, at once.
void await_verdict(const Board& board);

// Asks `lockstep scenario` to judge the job as it is now, and returns when it has; without it, at once.
void await_judge();

}  // namespace lockstep::scene
