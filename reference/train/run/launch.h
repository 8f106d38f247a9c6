// SPDX-License-Identifier: MIT
//
// How a process learns which ranks it is. Three ways, looked for in this order:
//
//   RANK and WORLD_SIZE (torchrun and its like)   one rank; the ranks meet at NCCL_COMM_ID=host:port or in --id-file
//   mpirun                                        one rank; MPI carries the unique id
//   neither                                       all ranks are threads of this process
//
// MPI is reached through a small library beside the program, opened only under mpirun, so that the program itself needs
// no MPI to start.

#pragma once

#include <nccl.h>

#include <functional>
#include <string>

#include "reference/train/run/options.h"

namespace train {

struct Launch {
  enum class As { threads, environment, mpi } as = As::threads;
  int rank = 0, world = 1;  // of this process; rank is 0 for threads
  int device = 0;           // of this process's rank
  int here = 1;             // ranks on this machine, as far as the launcher says
};

// What the environment says; without it the ranks are those of --ranks or of the layout. Under mpirun this starts MPI.
// Throws Refusal.
Launch find_launch(const Options& options);

// Runs `body` as each of this process's ranks, its device set. Returns the largest of their results.
using RankBody = std::function<int(int rank, const ncclUniqueId& id)>;
int run_ranks(const Launch& launch, const Options& options, const RankBody& body);

}  // namespace train
